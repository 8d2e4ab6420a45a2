#!/bin/sh
# get-kubernetes.sh: a real Kubernetes control plane (kube-apiserver, kube-controller-manager, kube-scheduler, etcd) for
# the live tests. No container, no root, and no change to this host.
#
# Prints, as its only line on stdout, a directory with the four programs and etcdctl. With --cached it builds nothing, and
# fails if that was not done before.
#
# How: no Debian release has a package of the API server, but the source package `kubernetes` of bookworm (1.20.2) is the
# complete upstream tree with its vendored modules. Go and etcd are packages of bookworm, unpacked and not installed.
#
# Cached as debian.sh says. Building takes about five minutes on two cores.
#
# Needs apt-get, dpkg-deb, tar, xz.
. "$(dirname "$0")/debian.sh"

[ $# -eq 0 ] || [ "$*" = --cached ] || fail "usage: get-kubernetes.sh [--cached]"
cache=$(cache_directory)
# The number is raised when this script makes something else.
prefix=$cache/kubernetes-1.20-1
done_already() { [ -d "$prefix" ]; }
if done_already; then echo "$prefix"; exit 0; fi
[ "$*" != --cached ] || fail "the control plane of Kubernetes is not built: make kubernetes (five minutes)"

need apt-get dpkg-deb tar xz
begin_build "$cache" kubernetes
main_archive_of bookworm
for file in "$work"/apt/sources/*; do
    case $file in
        *.sources) sed -i 's/^Types:.*/Types: deb deb-src/' "$file" ;;
        *.list) sed -i 's/^deb \(.*\)/deb \1\ndeb-src \1/' "$file" ;;
    esac
done
say "fetching Go, etcd and the source of Kubernetes of Debian bookworm (about 120 MB, once)"
apt update
apt install --download-only golang-1.19-go golang-1.19-src etcd-server etcd-client
mkdir "$work/tools"
for package in "$work"/apt/cache/archives/golang*.deb "$work"/apt/cache/archives/etcd*.deb; do
    dpkg-deb --fsys-tarfile "$package" | tar -x -C "$work/tools" --no-same-owner
done
source=$work/gopath/src/k8s.io/kubernetes
mkdir -p "$source" "$work/out" "$work/source"
(cd "$work/source" && apt source --download-only kubernetes)
tar -x -f "$work"/source/kubernetes_*.orig.tar.* -C "$source" --strip-components=1 --no-same-owner

say "building the control plane (about five minutes, once)"
export GOROOT="$work/tools/usr/lib/go-1.19" GO111MODULE=off GOPATH="$work/gopath" GOCACHE="$work/cache" CGO_ENABLED=0
export GOFLAGS='' HOME="$work" PATH="$work/tools/usr/lib/go-1.19/bin:$PATH"
cd "$source"
kubernetes=k8s.io/kubernetes
{
    # The one generated file that the tree lacks and the server needs.
    go build -o "$work/openapi-gen" $kubernetes/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    packages=$(grep -rl --include='*.go' '+k8s:openapi-gen=' pkg cmd staging/src/k8s.io |
        grep -vE '_test.go|/testdata/|code-generator/|sample-|zz_generated|/examples/|test/' | xargs -n1 dirname |
        sort -u | sed -e "s#^staging/src/#$kubernetes/vendor/#" -e "s#^pkg/#$kubernetes/pkg/#" \
            -e "s#^cmd/#$kubernetes/cmd/#" | paste -sd,)
    "$work/openapi-gen" --logtostderr -i "$packages" -p $kubernetes/pkg/generated/openapi -O zz_generated.openapi \
        -h hack/boilerplate/boilerplate.generatego.txt -r "$work/violations"
    flags="-s -w"
    for package in client-go/pkg/version component-base/version; do
        name=$kubernetes/vendor/k8s.io/$package
        flags="$flags -X $name.gitVersion=v1.20.2 -X $name.gitMajor=1 -X $name.gitMinor=20"
        flags="$flags -X $name.gitTreeState=archive -X $name.buildDate=2021-01-13T00:00:00Z"
    done
    for program in kube-apiserver kube-controller-manager kube-scheduler; do
        go build -trimpath -ldflags "$flags" -o "$work/out/$program" $kubernetes/cmd/$program
    done
} >>"$work/log" 2>&1 || :
for program in kube-apiserver kube-controller-manager kube-scheduler; do
    [ -x "$work/out/$program" ] || { tail -n 30 "$work/log" >&2; fail "$program could not be built"; }
done
cp "$work/tools/usr/bin/etcd" "$work/tools/usr/bin/etcdctl" "$work/out/"
chmod -R u+w "$work"
mv -T "$work/out" "$prefix"
echo "$prefix"
