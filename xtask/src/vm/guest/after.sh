# Checks after all programs: credits must have kept every message from coming without a buffer.
echo "== the devices afterwards"
for refused in /sys/class/infiniband/*/ports/1/hw_counters/rcvd_rnr_err; do
    read -r count <"$refused"
    [ "$count" = 0 ] || { echo "$refused: $count messages came before there was a buffer for them"; status=1; }
done
exit $status
