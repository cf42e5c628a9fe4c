# Checks what every test in the guest relies on: messages cross the wire, and a pulled cable stops them until it is plugged in.
listens() {
    tries=0
    until grep -q ':4853 [0-9A-F:]* 0A ' /proc/net/tcp /proc/net/tcp6 2>/dev/null; do
        tries=$((tries + 1))
        [ $tries -lt 300 ] || return 1
        sleep 0.1
    done
}
# Sends messages from rxe1 to rxe0, within this many seconds or a minute.
pingpong() {
    ibv_rc_pingpong -e -d rxe0 -g 1 -n 50 >/dev/null 2>&1 &
    server=$!
    listens || { kill $server 2>/dev/null; wait $server 2>/dev/null; return 1; }
    timeout "${1:-60}" ibv_rc_pingpong -e -d rxe1 -g 1 -n 50 10.77.0.1 >/dev/null 2>&1
    outcome=$?
    kill $server 2>/dev/null
    wait $server 2>/dev/null
    return $outcome
}
crossed() { cat /sys/class/net/port0/statistics/rx_packets; }
bed() {
    before=$(crossed)
    pingpong || { echo "no messages between rxe0 and rxe1"; return 1; }
    [ $(($(crossed) - before)) -ge 50 ] || { echo "messages do not cross the wire"; return 1; }
    cable pull 0
    pingpong 8 && { echo "messages cross a pulled cable"; return 1; }
    cable plug 0
    pingpong || { echo "a plugged cable carries nothing"; return 1; }
    cable down 0
    grep -q DOWN /sys/class/infiniband/rxe0/ports/1/state || { echo "a port does not go down"; return 1; }
    cable plug 0
    pingpong || { echo "a port that was down carries nothing"; return 1; }
}
echo "== the guest itself"
bed && echo "messages cross the wire; cables can be pulled" || status=1
