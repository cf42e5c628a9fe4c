#!/bin/sh
# Pulls cables, and puts them back.
usage() {
    cat <<'END'
cable pull N                         cuts device N off; no port reports it
cable down N                         takes its port down, which it reports
cable plug N                         mends either
cable shape N [rate R] [loss P] [delay T]   what tc's netem does to packets that go to device N; without more, nothing
END
}
case ${1-}:${2-} in
pull:[0-7] | down:[0-7] | plug:[0-7] | shape:[0-7]) what=$1 number=$2 ;;
:) usage && exit ;;
*) usage >&2 && exit 2 ;;
esac
shift 2
case $what in
pull) ip link set "port$number" nomaster ;;
down) ip link set "eth$number" down ;;
plug)
    ip link set "port$number" master wire
    ip link set "eth$number" up
    # An interface that went down has lost its routes.
    ip route replace 10.77.0.0/24 dev "eth$number" table $((100 + number))
    for other in 0 1 2 3 4 5 6 7; do
        [ -e "/sys/class/net/eth$other" ] || continue
        ip neigh replace "10.77.0.$((other + 1))" lladdr "02:77:00:00:00:0$other" dev "eth$number" nud permanent
    done
    ;;
shape)
    if [ $# -gt 0 ]; then
        tc qdisc replace dev "port$number" root netem limit 10000 "$@"
    else
        tc qdisc del dev "port$number" root 2>/dev/null || true
    fi
    ;;
esac
