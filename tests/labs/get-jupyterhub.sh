#!/bin/sh
# get-jupyterhub.sh: JupyterHub with its proxy, batchspawner and Jupyter Server as published, without root or change to
# this host.
#
# Prints the directory that holds them as its only line on stdout: a virtual environment with node_modules. They come
# from where this host's pip and npm get their packages.
#
# With --optional it says why on stderr, and exits with 0, where they cannot be had: the tests that need them are skipped.
# Cached as debian.sh says.
. "$(dirname "$0")/debian.sh"
optional_run JupyterHub "$@"

[ $# -eq 0 ] || fail "usage: get-jupyterhub.sh [--optional]"
hub=6.1.1
cache=$(cache_directory)
prefix=$cache/jupyterhub-$hub

done_already() { [ -d "$prefix" ]; }
if done_already; then echo "$prefix"; exit 0; fi

need /usr/bin/python3 npm node
begin_build "$cache" jupyterhub
say "installing JupyterHub $hub and batchspawner (about 60 MB, once)"
tree=$work/hub
# this host's own interpreter: the lab's account may not read that of a virtual environment
/usr/bin/python3 -m venv "$tree" >&2
"$tree/bin/python" -m pip --disable-pip-version-check -q install jupyterhub==$hub batchspawner==1.3.0 \
    jupyter-server==2.21.1 >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; fail "pip could not install jupyterhub"; }
npm install --silent --no-audit --no-fund --prefix "$tree" configurable-http-proxy@5.3.0 >"$work/log" 2>&1 ||
    { tail -n 20 "$work/log" >&2; fail "npm could not install configurable-http-proxy"; }
# the programs begin with the path of the interpreter
find "$tree/bin" -type f -exec grep -lI "^#!$tree/" {} + | xargs sed -i "1s|$tree|$prefix|"
mv -T "$tree" "$prefix"
echo "$prefix"
