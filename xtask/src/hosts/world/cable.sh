#!/bin/sh
# Pulls the cables of hosts, spoils them, and mends them.
usage() {
    cat <<'END'
cable pull HOST              cuts the host off, in both directions; no interface reports it
cable deaf HOST              loses all that is sent to the host; what the host sends arrives
cable mute HOST              loses all that the host sends; what is sent to the host arrives
cable lose HOST PERCENT      loses PERCENT of the packets, in both directions; a packet may be a batch that a card would divide
cable narrow HOST BYTES      loses all packets of more than BYTES, in both directions, and reports that to no sender
cable plug HOST              mends these
cable rate HOST MBIT         limits both directions to MBIT megabits in a second
cable rate HOST              takes the limit away
cable delay HOST MS PERCENT  delays both directions by MS milliseconds, and loses PERCENT of the packets; needs the kernel's netem
cable delay HOST             takes that away

`deaf`, `mute`, `rate` and `delay` replace each other, and so do `lose` and `narrow`.
END
}
case ${1-}:${2-} in
: | --help: | -h:) usage && exit ;;
pull:h[0-9]* | deaf:h[0-9]* | mute:h[0-9]* | lose:h[0-9]* | narrow:h[0-9]*) what=$1 name=$2 ;;
plug:h[0-9]* | rate:h[0-9]* | delay:h[0-9]*) what=$1 name=$2 ;;
*) usage >&2 && exit 2 ;;
esac
shift 2

# Sets the queue through which an interface sends, or takes it away. Arguments: the network, the interface, the queue.
queue() {
    network=$1 interface=$2
    shift 2
    if [ $# -gt 0 ]; then
        tc -n "$network" qdisc replace dev "$interface" root "$@"
    else
        tc -n "$network" qdisc del dev "$interface" root 2>/dev/null || true
    fi
}

# What the switch sends to the host, and what the host sends.
to_host() { queue switch "$name" "$@"; }
from_host() { queue "$name" eth0 "$@"; }
both() { to_host "$@" && from_host "$@"; }

# Has the kernel ask a program about each packet before it leaves an interface, or about none. Arguments: the network, the
# interface, the program. 0 lets the packet pass, and 2 loses it.
filter() {
    tc -n "$1" qdisc del dev "$2" clsact 2>/dev/null || true
    [ -n "${3-}" ] || return 0
    tc -n "$1" qdisc add dev "$2" clsact || exit
    tc -n "$1" filter add dev "$2" egress protocol all bpf direct-action bytecode "$3" || exit
}
filter_both() { filter switch "$name" "$@" && filter "$name" eth0 "$@"; }

# `ld #rand; jgt #LIMIT, pass, lose`
lose() {
    need_number "${1-}" 100
    filter_both "4,32 0 0 4294963256,37 0 1 $((4294967295 * $1 / 100)),6 0 0 0,6 0 0 2"
}

# `ld #len; jgt #LIMIT, lose, pass`; the length is with the header of the Ethernet.
narrow() {
    need_number "${1-}" 65535
    filter_both "4,128 0 0 0,37 1 0 $(($1 + 14)),6 0 0 0,6 0 0 2"
}

# Ends with the usage if the first argument is not a whole number up to the second.
need_number() {
    case $1 in
    '' | *[!0-9]*) usage >&2 && exit 2 ;;
    esac
    [ "$1" -le "$2" ] || { usage >&2 && exit 2; }
}

mend() {
    filter_both
    ip -n switch link set "$name" master switch0
    ! loses switch "$name" || to_host
    ! loses "$name" eth0 || from_host
}

loses() { tc -n "$1" qdisc show dev "$2" root | grep -q '^qdisc blackhole'; }

delay() {
    [ $# -gt 0 ] || { both && exit; }
    [ $# = 2 ] || { usage >&2 && exit 2; }
    both netem delay "$1ms" loss "$2%" && exit
    echo "cable: delays and losses need a kernel with netem (CONFIG_NET_SCH_NETEM); this one lacks it, or refuses the numbers" >&2
    exit 1
}

case $what in
pull) ip -n switch link set "$name" nomaster ;;
deaf) to_host blackhole ;;
mute) from_host blackhole ;;
lose) lose "$@" ;;
narrow) narrow "$@" ;;
plug) mend ;;
rate) [ -z "${1-}" ] && both || both tbf rate "${1}mbit" burst 256k latency 50ms ;;
delay) delay "$@" ;;
esac
