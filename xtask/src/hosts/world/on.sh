#!/bin/sh
# Runs a command on a host without its network, so also on a host that is cut off: on HOST COMMAND [ARG..]
[ $# -ge 2 ] || { echo "on HOST COMMAND [ARG..]" >&2 && exit 2; }
read -r process <"/run/hosts/$1.first" || exit 125
shift
exec nsenter --target "$process" --mount --uts --ipc --net --pid -- sh -c 'cd "$0" && exec "$@"' "$PWD" "$@"
