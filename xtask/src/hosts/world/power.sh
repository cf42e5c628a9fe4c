#!/bin/sh
# Starts hosts, and ends them at once.
base=/run/hosts
usage() {
    cat <<'END'
power off HOST  kills all processes of the host at once; its kernel still closes their connections, so `cable pull` it before
                if nothing shall be heard of it
power on HOST   starts it again
END
}
case ${1-}:${2-} in
: | --help: | -h:) usage && exit ;;
on:h[0-9]* | off:h[0-9]*) what=$1 name=$2 ;;
*) usage >&2 && exit 2 ;;
esac
first=$base/$name.first
if [ "$what" = off ]; then
    read -r process <"$first" || exit
    rm "$first" "$base/$name.ready"
    kill -9 "$process" || exit
    while [ -e "/proc/$process" ]; do sleep 0.02; done
    exit 0
fi
[ -e "$first" ] && echo "power: $name is on" >&2 && exit 1
read -r sshd <$base/sshd
ip netns exec "$name" unshare --uts --ipc --pid --fork --kill-child --mount-proc \
    sh $base/host.sh "$name" "$sshd" </dev/null >"$base/$name.log" 2>&1 &
looks=0
until [ -s "$base/$name.ready" ]; do
    looks=$((looks + 1))
    if [ $looks -gt 1500 ] || ! kill -0 $! 2>/dev/null; then
        echo "power: $name does not start:" >&2
        cat "$base/$name.log" >&2
        exit 1
    fi
    sleep 0.02
done
# The list has no end of line, so `read` fails, although it reads.
read -r process _ <"/proc/$!/task/$!/children" || [ -n "$process" ] || exit
echo "$process" >"$first"
