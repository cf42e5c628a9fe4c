# The guest's second part, among this machine's files: the devices, then the command. It starts few programs, as each takes a
# tenth of a second in emulation.
cd /run/ripstop || exit
share() { :; }
. ./settings
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
echo ripstop >/proc/sys/kernel/hostname
ulimit -l unlimited

for port in /sys/class/virtio-ports/*; do
    read -r name <"$port/name" || continue
    case $name in
    out) out=/dev/${port##*/} ;;
    err) err=/dev/${port##*/} ;;
    status) status=/dev/${port##*/} ;;
    esac
done

upto() {
    number=0
    while [ $number -lt "$devices" ]; do
        "$@" $number
        number=$((number + 1))
    done
}

# Device i is on eth<i>, 10.77.0.<i+1>, whose cable ends as port<i> at a bridge, the wire. A kernel sends what goes from one of
# its addresses to another through `lo`, where no device listens; so look-ups that name an outgoing interface, as those of the
# devices do and those of sockets do not, go to a table of that interface before the table of local addresses.
cable() {
    mac=02:77:00:00:00:0$1
    echo "link add eth$1 mtu 9000 address $mac type veth peer name port$1 mtu 9000"
    echo "link set port$1 master wire up"
    echo "addr add 10.77.0.$(($1 + 1))/24 dev eth$1"
    echo "link set eth$1 up"
    echo "rule add pref $((10 + $1)) oif eth$1 to 10.77.0.0/24 lookup $((100 + $1))"
    echo "route add 10.77.0.0/24 dev eth$1 table $((100 + $1))"
}

# Neighbors are fixed: nothing depends on ARP, which `lo` would answer.
neighbors() {
    other=0
    while [ $other -lt "$devices" ]; do
        echo "neigh replace 10.77.0.$((other + 1)) lladdr 02:77:00:00:00:0$other dev eth$1 nud permanent"
        other=$((other + 1))
    done
}

wire() {
    echo link set lo up
    [ "$devices" -gt 0 ] || return
    echo link add wire type bridge stp_state 0 mcast_snooping 0
    echo link set wire mtu 9000 up
    echo rule add pref 1000 lookup local
    echo rule del pref 0
    upto cable
    upto neighbors
}

# No packet may be refused because a receiver is late. A soft-RoCE device that cannot send a packet of a read's answer reports RNR
# in the middle of the answer, where the reader expects none and takes its queue pair down.
patient() { echo 1000000 >/proc/sys/net/core/netdev_max_backlog; }

accept() {
    rules=/proc/sys/net/ipv4/conf/eth$1
    echo 0 >$rules/rp_filter
    echo 1 >$rules/accept_local
    echo 1 >$rules/arp_ignore
}

device() { rdma link add rxe$1 type rxe netdev eth$1; }

# Until the port is active and has the address that stands for its interface's.
active() {
    port=/sys/class/infiniband/rxe$1/ports/1
    tries=0
    while [ $tries -lt 100 ]; do
        if read -r state <$port/state && read -r gid <$port/gids/1; then
            case $state$gid in *ACTIVE*:ffff:0a4d:*) return ;; esac
        fi
        sleep 0.1
        tries=$((tries + 1))
    done
    echo "<3>ripstop: rxe$1 does not become active"
}

shape() { echo "qdisc add dev port$1 root netem limit 10000 $shape"; }

{
    wire >links
    ip -batch links
    patient
    echo 0 >/proc/sys/net/ipv4/conf/all/rp_filter
    upto accept
    upto device
    upto active
    [ -z "$shape" ] || { upto shape >shapes && tc -batch shapes; } || echo "<3>ripstop: no shape $shape"
} </dev/null >/dev/kmsg 2>&1

export PATH="$PATH:/run/ripstop/bin"
echo began >$status
# The command sets the PATH of the host, so `cable` must be where every PATH leads.
ln -sf /run/ripstop/bin/cable /usr/local/bin/cable
/bin/sh ./command </dev/null >$out 2>$err
echo "ended $?" >$status
./busybox poweroff -f
