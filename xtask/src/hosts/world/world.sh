# Process 1 of the world. All hosts, and the switch between them, are below this process and end with it.
#
# This process has new namespaces: its network is that of the switch, and its mounts are seen only below it. The lines that
# follow this file call `begin`, `put` for each file, `prepare`, `host` for each host, and `run`.
set -eu
unset WORLD_SCRIPT
PATH="$PATH:/usr/sbin:/sbin"
base=/run/hosts

# The trap is taken away before the command runs, so only what comes before it ends here.
trap 'echo "hosts: the hosts could not be made" >&2; exit 125' EXIT

begin() {
    mount -t tmpfs -o mode=755 tmpfs /run
    mount -t tmpfs -o mode=1777 tmpfs /dev/shm
    mkdir -p $base/bin /run/sshd
}

# Writes a file of the world from the standard input.
put() {
    cat >"$base/$1"
    chmod "$2" "$base/$1"
}

prepare() {
    ssh-keygen -q -t ed25519 -N '' -C '' -f $base/user_key
    ssh-keygen -q -t ed25519 -N '' -C '' -f $base/host_key
    read -r kind key _ <$base/host_key.pub
    echo "* $kind $key" >$base/known_hosts
    mount --bind $base/names /etc/hosts
    open_account
    ip netns attach switch $$
    ip link set lo up
    ip link add switch0 type bridge mcast_snooping 0
    ip link set switch0 up
}

# sshd lets no user in whose password is locked, even with a key. Only the world sees this account, which no password opens.
open_account() {
    (umask 077 && echo "$(id -un):*:1:0:99999:7:::" >$base/shadow)
    mount --bind $base/shadow /etc/shadow
}

# Makes a network with a cable to the switch. Arguments: its name, IPv4 and IPv6 address.
wire() {
    ip netns add "$1"
    ip link add "$1" type veth peer name eth0 netns "$1"
    ip link set "$1" master switch0 up
    ip -n "$1" link set lo up
    ip -n "$1" addr add "$2" dev eth0
    ip -n "$1" addr add "$3" dev eth0 nodad
    ip -n "$1" link set eth0 up
}

host() {
    wire "$@"
    $base/bin/power on "$1" || exit
    [ -z "$rate" ] || $base/bin/cable rate "$1" "$rate" || exit
}

# Runs the command on a machine that is no host, but has a cable to the switch. It sees the processes of all hosts.
run() {
    wire login "$1" "$2"
    shift 2
    trap - EXIT
    export PATH="$base/bin:$PATH" TEST_HOSTS=$base
    status=0
    ip netns exec login unshare --uts --ipc sh -c 'hostname login && exec "$@"' login "$@" || status=$?
    exit $status
}
