#!/bin/sh
# Pulls the cables of hosts, and puts them back.
usage() {
    cat <<'END'
cable pull HOST       cuts the host off, in both directions; no interface reports it
cable plug HOST       mends that
cable rate HOST MBIT  limits both directions to MBIT megabits in a second
cable rate HOST       takes the limit away
END
}
case ${1-}:${2-} in
: | --help: | -h:) usage && exit ;;
pull:h[0-9]* | plug:h[0-9]* | rate:h[0-9]*) what=$1 name=$2 rate=${3-} ;;
*) usage >&2 && exit 2 ;;
esac
limit() {
    if [ -n "$rate" ]; then
        tc -n "$1" qdisc replace dev "$2" root tbf rate "${rate}mbit" burst 256k latency 50ms
    else
        tc -n "$1" qdisc del dev "$2" root 2>/dev/null || true
    fi
}
case $what in
pull) ip -n switch link set "$name" nomaster ;;
plug) ip -n switch link set "$name" master switch0 ;;
rate) limit switch "$name" && limit "$name" eth0 ;;
esac
