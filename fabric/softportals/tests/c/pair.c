/* Two processes, ranks 0 and 1: messages of many sizes there and back, on a matching and an unmatched interface. */
#include "check.h"
#include <time.h>

enum { MOST = 1 << 20, ROUNDS = 2000 };

static char in[MOST], out[MOST];

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e6 + time.tv_nsec * 1e-3;
}

struct side {
    ptl_handle_ni_t ni;
    ptl_handle_eq_t eq;
    ptl_handle_ct_t ct;
    ptl_handle_md_t md;
    ptl_process_t peer;
    uint32_t pt;
};

static struct side open_side(int rank, int matching)
{
    struct side side;
    ptl_process_t map[2];
    unsigned int kind = matching ? PTL_NI_MATCHING : PTL_NI_NO_MATCHING;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, kind | PTL_NI_LOGICAL, 100 + rank, 0, 0, &side.ni));
    OK(PtlGetPhysId(side.ni, &map[rank]));
    CHECK(map[rank].phys.pid == 100u + rank);
    map[1 - rank].phys.nid = map[rank].phys.nid;
    map[1 - rank].phys.pid = 101 - rank;
    OK(PtlSetMap(side.ni, 2, map));
    OK(PtlEQAlloc(side.ni, 64, &side.eq));
    OK(PtlCTAlloc(side.ni, &side.ct));
    OK(PtlPTAlloc(side.ni, 0, side.eq, PTL_PT_ANY, &side.pt));
    memset(&side.peer, 0, sizeof side.peer);
    side.peer.rank = 1 - rank;
    ptl_md_t md = {out, MOST, PTL_MD_EVENT_SEND_DISABLE, side.eq, PTL_CT_NONE};
    OK(PtlMDBind(side.ni, &md, &side.md));
    if (matching) {
        ptl_me_t me;
        ptl_handle_me_t handle;
        memset(&me, 0, sizeof me);
        me.start = in;
        me.length = MOST;
        me.uid = PTL_UID_ANY;
        me.match_id.rank = 1 - rank;
        me.match_bits = 11;
        me.options = PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE | PTL_ME_EVENT_COMM_DISABLE | PTL_ME_EVENT_CT_COMM;
        me.ct_handle = side.ct;
        OK(PtlMEAppend(side.ni, side.pt, &me, PTL_PRIORITY_LIST, 0, &handle));
    } else {
        ptl_le_t le;
        ptl_handle_le_t handle;
        memset(&le, 0, sizeof le);
        le.start = in;
        le.length = MOST;
        le.uid = PTL_UID_ANY;
        le.options = PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE | PTL_ME_EVENT_COMM_DISABLE | PTL_ME_EVENT_CT_COMM;
        le.ct_handle = side.ct;
        OK(PtlLEAppend(side.ni, side.pt, &le, PTL_PRIORITY_LIST, 0, &handle));
    }
    return side;
}

/* The peer may not be there yet: it is asked until it takes a message. */
static void meet(struct side *side)
{
    ptl_event_t event;
    do {
        OK(PtlPut(side->md, 0, 0, PTL_ACK_REQ, side->peer, side->pt, 11, 0, 0, 0));
        OK(PtlEQWait(side->eq, &event));
        CHECK(event.type == PTL_EVENT_ACK);
        nanosleep(&(struct timespec){0, 1000000}, 0);
    } while (event.ni_fail_type != PTL_NI_OK);
    ptl_ct_event_t count;
    OK(PtlCTWait(side->ct, 1, &count));
}

static char byte_of(ptl_size_t size, int round, int rank)
{
    return (char) (size * 7 + (ptl_size_t) round * 31 + (ptl_size_t) rank + 1);
}

static void ping_pong(struct side *side, int rank)
{
    static const ptl_size_t sizes[] = {0,    1,     8,     900,   901,   1648,  4096, 32767,
                                       32768, 32769, 65536, 65537, 262144, 1000000, MOST};
    ptl_size_t received = 1;
    ptl_ct_event_t count;
    for (unsigned int at = 0; at < sizeof sizes / sizeof *sizes; at++) {
        ptl_size_t size = sizes[at];
        int rounds = size <= 8 ? ROUNDS : 20;
        double start = now();
        for (int round = 0; round < rounds; round++) {
            for (int turn = 0; turn < 2; turn++) {
                if (turn == rank) {
                    /* The peer has answered the last one, so that one has left. */
                    memset(out, byte_of(size, round, rank), size);
                    OK(PtlPut(side->md, 0, size, PTL_NO_ACK_REQ, side->peer, side->pt, 11, 0, 0, 0));
                } else {
                    OK(PtlCTWait(side->ct, ++received, &count));
                    CHECK(count.failure == 0);
                    for (ptl_size_t check = 0; check < size; check++)
                        CHECK(in[check] == byte_of(size, round, 1 - rank));
                }
            }
        }
        if (rank == 0 && (size == 8 || size == MOST))
            printf("%u bytes: %.1f us\n", (unsigned int) size, (now() - start) / rounds / 2);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    alarm(PATIENCE);
    int rank = atoi(argv[1]);
    OK(PtlInit());
    for (int matching = 0; matching < 2; matching++) {
        struct side side = open_side(rank, matching);
        meet(&side);
        ping_pong(&side, rank);
        /* The last message of rank 1 is seen before it leaves. */
        OK(PtlPut(side.md, 0, 0, PTL_ACK_REQ, side.peer, side.pt, 11, 0, 0, 0));
        next_event(side.eq, PTL_EVENT_ACK, PTL_NI_OK);
        ptl_ct_event_t count;
        OK(PtlCTGet(side.ct, &count));
        OK(PtlCTWait(side.ct, 1 + 3 * ROUNDS + 12 * 20 + 1, &count));
        nanosleep(&(struct timespec){0, 100000000}, 0);
        OK(PtlMDRelease(side.md));
        OK(PtlNIFini(side.ni));
    }
    PtlFini();
    puts("ok");
    return 0;
}
