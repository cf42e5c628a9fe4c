/* Several processes, rank and count as arguments: a token that travels by itself, and two rails that are waited for at once. */
#include "check.h"
#include <time.h>

enum { LAPS = 50, TOKEN = 4711, HELLO = 1, PASS = 2, MOST = 16 };

static uint64_t token, hello;

static void wait_ms(long ms)
{
    nanosleep(&(struct timespec){0, ms * 1000000}, 0);
}

static double now_ms(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec * 1e3 + time.tv_nsec * 1e-6;
}

static ptl_me_t entry(void *start, uint64_t match_bits, ptl_handle_ct_t ct)
{
    ptl_me_t me;
    memset(&me, 0, sizeof me);
    me.start = start;
    me.length = sizeof(uint64_t);
    me.ct_handle = ct;
    me.uid = PTL_UID_ANY;
    me.match_id.rank = PTL_RANK_ANY;
    me.match_bits = match_bits;
    me.options = PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE | PTL_ME_EVENT_COMM_DISABLE | PTL_ME_EVENT_CT_COMM;
    return me;
}

/* Times end waits, and not much later than they should. */
static void timeouts(ptl_handle_eq_t eq, ptl_handle_ct_t ct)
{
    ptl_event_t event;
    ptl_ct_event_t count;
    ptl_size_t test = 1;
    unsigned int which;
    double start = now_ms();
    SAYS(PTL_EQ_EMPTY, PtlEQPoll(&eq, 1, 50, &event, &which));
    SAYS(PTL_CT_NONE_REACHED, PtlCTPoll(&ct, &test, 1, 50, &count, &which));
    double passed = now_ms() - start;
    CHECK(passed >= 100 && passed < 10000);
    SAYS(PTL_EQ_EMPTY, PtlEQPoll(&eq, 1, 0, &event, &which));
    SAYS(PTL_CT_NONE_REACHED, PtlCTPoll(&ct, &test, 1, 0, &count, &which));
}

/* Every rank passes on what comes to it, as often as laps; no process does anything meanwhile. */
static void pass_token(ptl_handle_ni_t ni, uint32_t rank, uint32_t ranks)
{
    ptl_handle_eq_t eq;
    ptl_handle_ct_t passed, set;
    ptl_handle_md_t md, quiet;
    ptl_handle_me_t me;
    uint32_t pt;
    OK(PtlEQAlloc(ni, 64, &eq));
    OK(PtlCTAlloc(ni, &passed));
    OK(PtlCTAlloc(ni, &set));
    OK(PtlPTAlloc(ni, 0, eq, PTL_PT_ANY, &pt));
    timeouts(eq, passed);
    token = rank == 0 ? TOKEN : 0;
    ptl_md_t all = {&token, sizeof token, PTL_MD_EVENT_SEND_DISABLE, eq, PTL_CT_NONE};
    OK(PtlMDBind(ni, &all, &md));
    all.eq_handle = PTL_EQ_NONE;
    OK(PtlMDBind(ni, &all, &quiet));
    ptl_process_t right;
    memset(&right, 0, sizeof right);
    right.rank = (rank + 1) % ranks;
    ptl_me_t pass = entry(&token, PASS, passed), greet = entry(&hello, HELLO, PTL_CT_NONE);
    OK(PtlMEAppend(ni, pt, &pass, PTL_PRIORITY_LIST, 0, &me));
    /* The first rank stops the token after its last lap. */
    for (ptl_size_t lap = 1; lap <= LAPS - (rank == 0); lap++)
        OK(PtlTriggeredPut(quiet, 0, sizeof token, PTL_NO_ACK_REQ, right, pt, PASS, 0, 0, 0, passed, lap));
    ptl_ct_event_t seven = {7, 0}, count;
    OK(PtlTriggeredCTInc(set, seven, passed, 1));
    OK(PtlTriggeredCTSet(set, seven, passed, LAPS));
    /* Who can be greeted has posted all that. */
    OK(PtlMEAppend(ni, pt, &greet, PTL_PRIORITY_LIST, 0, &me));
    for (uint32_t peer = 0; rank == 0 && peer < ranks; peer++) {
        ptl_process_t to = right;
        ptl_event_t event;
        to.rank = peer;
        do {
            wait_ms(2);
            OK(PtlPut(md, 0, sizeof token, PTL_ACK_REQ, to, pt, HELLO, 0, 0, 0));
            OK(PtlEQWait(eq, &event));
            CHECK(event.type == PTL_EVENT_ACK);
        } while (event.ni_fail_type != PTL_NI_OK);
    }
    if (rank == 0)
        OK(PtlPut(quiet, 0, sizeof token, PTL_NO_ACK_REQ, right, pt, PASS, 0, 0, 0));
    OK(PtlCTWait(passed, LAPS, &count));
    CHECK(count.success == LAPS && count.failure == 0 && token == TOKEN);
    OK(PtlCTWait(set, 7, &count));
    OK(PtlCTGet(set, &count));
    CHECK(count.success == 7);
}

/* Two interfaces of one process are two rails: what comes over either ends a wait for counters of both, and queues are waited for
   one interface at a time. */
static void two_rails(void)
{
    ptl_handle_ni_t ni[2];
    ptl_handle_eq_t eq[2];
    ptl_handle_ct_t ct[2];
    for (unsigned int rail = 0; rail < 2; rail++) {
        ptl_process_t self;
        ptl_handle_md_t md;
        uint32_t pt;
        OK(PtlNIInit(rail, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, 0, 0, &ni[rail]));
        OK(PtlEQAlloc(ni[rail], 8, &eq[rail]));
        OK(PtlCTAlloc(ni[rail], &ct[rail]));
        OK(PtlPTAlloc(ni[rail], 0, eq[rail], PTL_PT_ANY, &pt));
        OK(PtlGetPhysId(ni[rail], &self));
        if (rail == 1) {
            ptl_md_t nothing = {0, 0, PTL_MD_EVENT_CT_SEND, eq[1], ct[1]};
            OK(PtlMDBind(ni[1], &nothing, &md));
            OK(PtlPut(md, 0, 0, PTL_NO_ACK_REQ, self, pt, 0, 0, 0, 0));
        }
    }
    ptl_event_t event;
    ptl_ct_event_t count;
    ptl_size_t tests[2] = {1, 1};
    unsigned int which = 9;
    SAYS(PTL_ARG_INVALID, PtlEQPoll(eq, 2, PTL_TIME_FOREVER, &event, &which));
    OK(PtlEQPoll(eq + 1, 1, PTL_TIME_FOREVER, &event, &which));
    CHECK(which == 0 && event.type == PTL_EVENT_SEND);
    SAYS(PTL_EQ_EMPTY, PtlEQPoll(eq, 1, 1, &event, &which));
    OK(PtlCTPoll(ct, tests, 2, PTL_TIME_FOREVER, &count, &which));
    CHECK(which == 1 && count.success == 1);
    OK(PtlNIFini(ni[0]));
    SAYS(PTL_ARG_INVALID, PtlEQPoll(eq, 1, 1, &event, &which));
    OK(PtlNIFini(ni[1]));
}

int main(int argc, char **argv)
{
    CHECK(argc == 3);
    alarm(PATIENCE);
    uint32_t rank = (uint32_t) atoi(argv[1]), ranks = (uint32_t) atoi(argv[2]);
    ptl_process_t map[MOST], self;
    ptl_handle_ni_t ni;
    CHECK(ranks <= MOST);
    OK(PtlInit());
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_LOGICAL, 200 + rank, 0, 0, &ni));
    OK(PtlGetPhysId(ni, &self));
    for (uint32_t peer = 0; peer < ranks; peer++) {
        map[peer].phys.nid = self.phys.nid;
        map[peer].phys.pid = 200 + peer;
    }
    OK(PtlSetMap(ni, ranks, map));
    pass_token(ni, rank, ranks);
    two_rails();
    /* What the last message set off leaves before its process does. */
    wait_ms(200);
    OK(PtlNIFini(ni));
    PtlFini();
    puts("ok");
    return 0;
}
