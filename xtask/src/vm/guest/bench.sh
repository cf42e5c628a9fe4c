# Functions that the contestants of `cargo xtask bench verbs` share; `ripstop` and `pairs` are programs.
unset RIPSTOP_VM
export RIPSTOP_FABRIC=verbs RIPSTOP_VERBS_DEVICE=rxe0 RIPSTOP_PROGRESS=inline
# perftest's server is there when it listens; its port is 18515.
theirs() {
    program=$1
    shift
    timeout 60 $program -d rxe0 -x 1 "$@" >/dev/null 2>&1 &
    server=$!
    tries=0
    until grep -q ':4853 .* 0A ' /proc/net/tcp /proc/net/tcp6 || [ $tries -gt 100 ]; do
        sleep 0.1
        tries=$((tries + 1))
    done
    timeout 60 $program -d $there -x 1 "$@" 10.77.0.1
    wait $server
}
ours() {
    timeout 60 "$ripstop" run -n 2 -- "$ripstop" perf "$@" --json
}
polling() { RIPSTOP_SPIN_US_MAX=10000 ours "$@"; }
sleeping() { RIPSTOP_SPIN_US_MAX=0 ours "$@"; }
there=rxe0
apart() {
    there=rxe1
    unset RIPSTOP_VERBS_DEVICE
    "$@"
    there=rxe0
    export RIPSTOP_VERBS_DEVICE=rxe0
}

# Runs two ranks with this many devices each, which the other rank does not use: `lanes 2 latency --size 8`.
cat >/run/lanes <<'END'
case $LANES$PMI_RANK in
10) own=rxe0 ;;
11) own=rxe4 ;;
20) own=rxe0,rxe1 ;;
21) own=rxe4,rxe5 ;;
40) own=rxe0,rxe1,rxe2,rxe3 ;;
41) own=rxe4,rxe5,rxe6,rxe7 ;;
esac
RIPSTOP_VERBS_DEVICE=$own exec "$@"
END
lanes() {
    count=$1
    shift
    LANES=$count RIPSTOP_DETECT_MS=20000 RIPSTOP_SPIN_US_MAX=0 \
        timeout 100 "$ripstop" run -n 2 -- sh /run/lanes "$ripstop" perf "$@" --json
}
# Shapes every cable by tc's netem, for one command: `shaped rate 80mbit delay 2ms -- lanes 2 bandwidth`.
shaped() {
    shape=
    while [ "$1" != -- ]; do
        shape="$shape $1"
        shift
    done
    shift
    for cable in 0 1 2 3 4 5 6 7; do cable shape $cable $shape; done
    "$@"
    for cable in 0 1 2 3 4 5 6 7; do cable shape $cable; done
}
# The first call of a collective and later ones, ranks taking turns among all devices: `first 8 RIPSTOP_CONNECT=hybrid`.
first() {
    ranks=$1
    shift
    (
        unset RIPSTOP_VERBS_DEVICE
        export RIPSTOP_DETECT_MS=20000 RIPSTOP_SPIN_US_MAX=0 "$@"
        timeout 100 "$ripstop" run -n $ranks -- "$ripstop" perf collective all_to_all --size 8 --iters 50 --warmup 5 --json
    )
}
