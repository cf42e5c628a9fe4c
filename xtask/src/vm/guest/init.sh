#!/bin/busybox sh
# The guest's first process: modules, then this machine's files with a layer of memory above, then setup.
bb=/bin/busybox
$bb mount -t proc proc /proc
$bb mount -t sysfs sysfs /sys
$bb mount -t devtmpfs dev /dev

fail() {
    echo "<2>ripstop: $*" >/dev/kmsg
    $bb poweroff -f
}

for module in /modules/*.ko; do
    $bb insmod "$module" || echo "<3>ripstop: $module does not load" >/dev/kmsg
done

how=trans=virtio,version=9p2000.L,msize=512000
$bb mount -t 9p -o ro,cache=loose,$how root /lower || fail "the root folder is not there"
$bb mount -t tmpfs -o mode=755,size=75% tmpfs /upper
$bb mkdir /upper/files /upper/work
$bb mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /merged ||
    fail "no layer of memory"

number=0
share() {
    case $1 in /tmp/*) is_tmp_shared=yes ;; esac
    $bb mount -t 9p -o rw,cache=none,$how share$number "/merged$1" || fail "$1 is not there"
    number=$((number + 1))
}
. /settings

for folder in proc sys dev; do $bb mount --move /$folder /merged/$folder; done
$bb mkdir -p /merged/dev/pts /merged/dev/shm
$bb mount -t devpts -o mode=620,ptmxmode=666 devpts /merged/dev/pts
$bb mount -t tmpfs -o mode=1777 tmpfs /merged/dev/shm
$bb mount -t tmpfs -o mode=755 tmpfs /merged/run
# What tests of the host leave in its folder meanwhile is none of what tests of the guest look for.
[ -n "$is_tmp_shared" ] || $bb mount -t tmpfs -o mode=1777 tmpfs /merged/tmp
$bb ln -sfn /proc/self/fd /merged/dev/fd
$bb ln -sfn fd/0 /merged/dev/stdin
$bb ln -sfn fd/1 /merged/dev/stdout
$bb ln -sfn fd/2 /merged/dev/stderr
$bb mkdir -p /merged/run/ripstop/bin
$bb cp /bin/busybox /setup /settings /command /merged/run/ripstop/
$bb cp /cable /merged/run/ripstop/bin/
# A shell of the host's from here on: busybox's would take its own `ip` for the real one.
exec $bb chroot /merged /bin/sh /run/ripstop/setup
