# The first process of a host, which becomes its sshd.
set -eu
base=/run/hosts
name=$1
sshd=$2
hostname "$name"
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
# A host has its own /run, in which only the folder of the world is common to all.
own=$base/run.$name
mkdir -p "$own"
mount -t tmpfs -o mode=755 tmpfs "$own"
mkdir "$own/hosts" "$own/sshd"
mount --bind $base "$own/hosts"
mount --rbind "$own" /run
exec "$sshd" -D -e -f $base/sshd_config -o "PidFile=$base/$name.ready"
