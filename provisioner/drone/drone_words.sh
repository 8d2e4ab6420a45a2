# Words of a drone script: messages, and variables that hold nothing unexpected.
say() { echo "drone: $*" >&2; }
refuse() { say "$*"; exit $USAGE; }

# word NAME PATTERN DEFAULT: the variable must be set (or have a default) and hold nothing but PATTERN's characters.
# Everything that ends up in a configuration file passes through here: no line break, no quote, no `$`.
word() {
    eval "value=\${$1:-\$3}"
    # shellcheck disable=SC2154
    [ -n "$value" ] || refuse "$1 is not set"
    # shellcheck disable=SC2254
    case $value in *[!$2]*) refuse "$1 has a character that is not one of $2" ;; esac
    eval "$1=\$value"
}
# number NAME DEFAULT: a whole number; the fraction of a decimal one is dropped.
number() {
    word "$1" '0-9.' "$2"
    eval "$1=\${$1%%.*}"
    eval "[ -n \"\$$1\" ]" || refuse "$1 is not a number"
}
# One line, without blanks.
escaped() {
    printf '%s\n' "$*" | tr '\n' ' ' | sed 's/[^[:print:]]/ /g; s/  */ /g; s/ *$//' | cut -c 1-400 |
        sed 's/%/%25/g; s/ /%20/g; s/=/%3D/g'
}
