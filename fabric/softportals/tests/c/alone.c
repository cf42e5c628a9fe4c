/* One process: every function once, with what it refuses. */
#include "check.h"
#include <poll.h>

enum { SIZE = 4096, KEY = 7 };

static ptl_handle_ni_t ni;
static ptl_handle_eq_t eq;
static ptl_handle_ct_t ct;
static ptl_process_t self;
static uint32_t pt;
static char target[SIZE], origin[SIZE];
static ptl_handle_md_t md;

static ptl_le_t list_entry(unsigned int options)
{
    ptl_le_t le;
    memset(&le, 0, sizeof le);
    le.start = target;
    le.length = SIZE;
    le.ct_handle = PTL_CT_NONE;
    le.uid = PTL_UID_ANY;
    le.options = PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE | options;
    return le;
}

static ptl_me_t entry(void *start, ptl_size_t length, unsigned int options)
{
    ptl_me_t me;
    memset(&me, 0, sizeof me);
    me.start = start;
    me.length = length;
    me.ct_handle = PTL_CT_NONE;
    me.uid = PTL_UID_ANY;
    me.options = PTL_ME_OP_PUT | PTL_ME_OP_GET | options;
    me.match_id.phys.nid = PTL_NID_ANY;
    me.match_id.phys.pid = PTL_PID_ANY;
    me.match_bits = KEY;
    return me;
}

static void before_init(void)
{
    ptl_handle_ni_t none;
    SAYS(PTL_NO_INIT, PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, 0, 0, &none));
    SAYS(PTL_NO_INIT, PtlEQFree(PTL_EQ_NONE));
    SAYS(PTL_NO_INIT, PtlAtomicSync());
}

static void interfaces(void)
{
    ptl_ni_limits_t wanted, got;
    memset(&wanted, 0, sizeof wanted);
    wanted.max_entries = wanted.max_mds = wanted.max_cts = wanted.max_eqs = 100;
    wanted.max_unexpected_headers = wanted.max_list_size = wanted.max_triggered_ops = 100;
    wanted.max_pt_index = 63;
    wanted.max_iovecs = 4;
    wanted.max_msg_size = wanted.max_atomic_size = wanted.max_fetch_atomic_size = (ptl_size_t) -1;
    wanted.max_volatile_size = (ptl_size_t) -1;
    wanted.max_waw_ordered_size = 8;
    wanted.max_war_ordered_size = 16;
    SAYS(PTL_ARG_INVALID, PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING, PTL_PID_ANY, 0, 0, &ni));
    SAYS(PTL_ARG_INVALID, PtlNIInit(77, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, 0, 0, &ni));
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, &wanted, &got, &ni));
    CHECK(got.max_entries == 100 && got.max_pt_index == 63 && got.max_iovecs == 4 && got.max_triggered_ops == 100);
    CHECK(got.max_msg_size >= 1u << 30 && got.max_atomic_size >= 512 && got.max_volatile_size >= 8);
    /* The specification promises more than was asked for. */
    CHECK(got.max_waw_ordered_size == 64 && got.max_war_ordered_size == 16);
    ptl_handle_ni_t again, of_eq;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, &wanted, &got, &again));
    CHECK(PtlHandleIsEqual(ni, again));
    OK(PtlNIFini(again));
    OK(PtlGetPhysId(ni, &self));
    ptl_process_t id;
    /* What is open is not asked for by its process id again: both families' libraries ignore it then. */
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, self.phys.pid % 100 + 1, 0, &got, &again));
    OK(PtlGetPhysId(again, &id));
    CHECK(PtlHandleIsEqual(ni, again) && id.phys.pid == self.phys.pid);
    OK(PtlNIFini(again));
    OK(PtlGetId(ni, &id));
    CHECK(id.phys.nid == self.phys.nid && id.phys.pid == self.phys.pid && id.phys.pid != PTL_PID_ANY);
    uint32_t uid;
    OK(PtlGetUid(ni, &uid));
    OK(PtlEQAlloc(ni, 64, &eq));
    OK(PtlCTAlloc(ni, &ct));
    OK(PtlNIHandle(eq, &of_eq));
    CHECK(PtlHandleIsEqual(ni, of_eq) && !PtlHandleIsEqual(ni, eq) && !PtlHandleIsEqual(eq, PTL_EQ_NONE));
    CHECK(PtlHandleIsEqual(PTL_EQ_NONE, PTL_EQ_NONE));
    SAYS(PTL_ARG_INVALID, PtlNIHandle(PTL_INVALID_HANDLE, &of_eq));
    SAYS(PTL_ARG_INVALID, PtlEQAlloc(eq, 64, &of_eq));
    SAYS(PTL_ARG_INVALID, PtlSetMap(ni, 1, &self));
    ptl_handle_ni_t logical;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_NO_MATCHING | PTL_NI_LOGICAL, PTL_PID_ANY, 0, &got, &logical));
    OK(PtlSetMap(logical, 1, &self));
    SAYS(PTL_MAP_AGAIN, PtlSetMap(logical, 1, &self));
    ptl_size_t size;
    OK(PtlGetMap(logical, 1, &id, &size));
    CHECK(size == 1 && id.phys.pid == self.phys.pid);
    OK(PtlGetId(logical, &id));
    CHECK(id.rank == 0);
    OK(PtlNIFini(logical));
    SAYS(PTL_ARG_INVALID, PtlNIFini(logical));
}

static void tables_and_descriptors(void)
{
    uint32_t other;
    SAYS(PTL_PT_EQ_NEEDED, PtlPTAlloc(ni, PTL_PT_FLOWCTRL, PTL_EQ_NONE, PTL_PT_ANY, &other));
    OK(PtlPTAlloc(ni, 0, eq, PTL_PT_ANY, &pt));
    CHECK(pt == 0);
    SAYS(PTL_PT_IN_USE, PtlPTAlloc(ni, 0, eq, 0, &other));
    SAYS(PTL_ARG_INVALID, PtlPTAlloc(ni, 0, eq, 64, &other));
    OK(PtlPTAlloc(ni, PTL_PT_FLOWCTRL | PTL_PT_ONLY_USE_ONCE | PTL_PT_ONLY_TRUNCATE, eq, 5, &other));
    CHECK(other == 5);
    OK(PtlPTFree(ni, 5));
    SAYS(PTL_ARG_INVALID, PtlPTFree(ni, 5));
    ptl_md_t all = {0, 0, 0, eq, PTL_CT_NONE};
    all.start = origin;
    all.length = SIZE;
    OK(PtlMDBind(ni, &all, &md));
    all.options = 1u << 31;
    ptl_handle_md_t bad;
    SAYS(PTL_ARG_INVALID, PtlMDBind(ni, &all, &bad));
    SAYS(PTL_ARG_INVALID, PtlPut(md, SIZE, 1, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlPut(md, 0, 1, 9, self, pt, KEY, 0, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlMDRelease(eq));
}

static void put_and_get(void)
{
    ptl_handle_me_t me;
    ptl_me_t one = entry(target, SIZE, 0);
    OK(PtlMEAppend(ni, pt, &one, PTL_PRIORITY_LIST, &one, &me));
    CHECK(next_event(eq, PTL_EVENT_LINK, PTL_NI_OK).user_ptr == (void *) &one);
    SAYS(PTL_PT_IN_USE, PtlPTFree(ni, pt));
    strcpy(origin, "to oneself");
    OK(PtlPut(md, 0, 11, PTL_ACK_REQ, self, pt, KEY, 100, &pt, 4711));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    ptl_event_t put = next_event(eq, PTL_EVENT_PUT, PTL_NI_OK);
    CHECK(put.start == target + 100 && put.mlength == 11 && put.rlength == 11 && put.hdr_data == 4711);
    CHECK(put.match_bits == KEY && put.remote_offset == 100 && put.pt_index == pt && put.user_ptr == (void *) &one);
    CHECK(put.initiator.phys.nid == self.phys.nid && put.initiator.phys.pid == self.phys.pid);
    CHECK((int) put.ptl_list == PTL_PRIORITY_LIST);
    ptl_event_t ack = next_event(eq, PTL_EVENT_ACK, PTL_NI_OK);
    CHECK(ack.user_ptr == (void *) &pt && ack.mlength == 11 && ack.remote_offset == 100);
    CHECK(strcmp(target + 100, "to oneself") == 0);
    OK(PtlGet(md, 200, 10, self, pt, KEY, 103, &md));
    next_event(eq, PTL_EVENT_GET, PTL_NI_OK);
    CHECK(next_event(eq, PTL_EVENT_REPLY, PTL_NI_OK).user_ptr == (void *) &md);
    CHECK(memcmp(origin + 200, "oneself", 8) == 0);
    OK(PtlPut(md, 0, 1, PTL_ACK_REQ, self, pt, KEY + 1, 0, 0, 0));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    next_event(eq, PTL_EVENT_ACK, PTL_NI_DROPPED);
    int drops = 0;
    OK(PtlNIStatus(ni, PTL_SR_DROP_COUNT, &drops));
    CHECK(drops == 1);
    OK(PtlPTDisable(ni, pt));
    OK(PtlPut(md, 0, 1, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    next_event(eq, PTL_EVENT_ACK, PTL_NI_PT_DISABLED);
    OK(PtlPTEnable(ni, pt));
    OK(PtlMEUnlink(me));
    SAYS(PTL_ARG_INVALID, PtlMEUnlink(me));
    ptl_event_t none;
    SAYS(PTL_EQ_EMPTY, PtlEQGet(eq, &none));
    unsigned int which;
    SAYS(PTL_EQ_EMPTY, PtlEQPoll(&eq, 1, 1, &none, &which));
    SAYS(PTL_ARG_INVALID, PtlEQGet(eq, 0));
}

static void unexpected(void)
{
    ptl_handle_me_t slab, taker;
    ptl_me_t over = entry(target, SIZE, PTL_ME_MANAGE_LOCAL | PTL_ME_EVENT_LINK_DISABLE);
    over.min_free = SIZE - 4;
    OK(PtlMEAppend(ni, pt, &over, PTL_OVERFLOW_LIST, &slab, &slab));
    OK(PtlPut(md, 0, 5, PTL_ACK_REQ, self, pt, KEY, 0, 0, 1));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    CHECK((int) next_event(eq, PTL_EVENT_PUT, PTL_NI_OK).ptl_list == PTL_OVERFLOW_LIST);
    CHECK((int) next_event(eq, PTL_EVENT_AUTO_UNLINK, PTL_NI_OK).ptl_list == PTL_OVERFLOW_LIST);
    CHECK((int) next_event(eq, PTL_EVENT_ACK, PTL_NI_OK).ptl_list == PTL_OVERFLOW_LIST);
    SAYS(PTL_IN_USE, PtlMEUnlink(slab));
    ptl_me_t once = entry(0, 0, PTL_ME_USE_ONCE);
    OK(PtlMESearch(ni, pt, &once, PTL_SEARCH_ONLY, &taker));
    CHECK(next_event(eq, PTL_EVENT_SEARCH, PTL_NI_OK).start == target);
    once.match_bits = KEY + 1;
    OK(PtlMESearch(ni, pt, &once, PTL_SEARCH_DELETE, &taker));
    next_event(eq, PTL_EVENT_SEARCH, PTL_NI_NO_MATCH);
    once.match_bits = KEY;
    ptl_me_t all = entry(0, 0, PTL_ME_EVENT_OVER_DISABLE);
    OK(PtlMESearch(ni, pt, &all, PTL_SEARCH_ONLY, &taker));
    next_event(eq, PTL_EVENT_SEARCH, PTL_NI_OK);
    if (SEARCHES_CLOSE)
        next_event(eq, PTL_EVENT_SEARCH, PTL_NI_NO_MATCH);
    OK(PtlMEAppend(ni, pt, &once, PTL_PRIORITY_LIST, &taker, &taker));
    CHECK(next_event(eq, PTL_EVENT_PUT_OVERFLOW, PTL_NI_OK).user_ptr == (void *) &taker);
    next_event(eq, PTL_EVENT_AUTO_UNLINK, PTL_NI_OK);
    CHECK(next_event(eq, PTL_EVENT_AUTO_FREE, PTL_NI_OK).user_ptr == (void *) &slab);
}

static void counters(void)
{
    ptl_ct_event_t value, one = {1, 0}, six = {6, 1}, seven = {7, 0};
    ptl_size_t test = 8;
    unsigned int which;
    OK(PtlCTGet(ct, &value));
    CHECK(value.success == 0 && value.failure == 0);
    OK(PtlCTSet(ct, six));
    OK(PtlCTPoll(&ct, &test, 1, PTL_TIME_FOREVER, &value, &which));
    CHECK(which == 0 && value.success == 6 && value.failure == 1);
    OK(PtlCTSet(ct, seven));
    SAYS(PTL_CT_NONE_REACHED, PtlCTPoll(&ct, &test, 1, 1, &value, &which));
    OK(PtlCTInc(ct, one));
    OK(PtlCTPoll(&ct, &test, 1, PTL_TIME_FOREVER, &value, &which));
    CHECK(which == 0 && value.success == 8 && value.failure == 0);
    OK(PtlCTWait(ct, 8, &value));
    ptl_handle_ct_t second;
    OK(PtlCTAlloc(ni, &second));
    OK(PtlTriggeredCTInc(second, one, ct, 9));
    OK(PtlTriggeredCTInc(second, seven, ct, 10));
    OK(PtlCTInc(ct, one));
    OK(PtlCTWait(second, 1, &value));
    CHECK(value.success == 1 && value.failure == 0);
    OK(PtlCTCancelTriggered(ct));
    OK(PtlCTInc(ct, one));
    OK(PtlCTGet(second, &value));
    CHECK(value.success == 1);
    ptl_handle_me_t me;
    ptl_me_t counted = entry(target, SIZE, PTL_ME_EVENT_CT_COMM | PTL_ME_EVENT_CT_BYTES | PTL_ME_EVENT_COMM_DISABLE
                                               | PTL_ME_EVENT_LINK_DISABLE);
    counted.ct_handle = second;
    OK(PtlMEAppend(ni, pt, &counted, PTL_PRIORITY_LIST, 0, &me));
    OK(PtlTriggeredPut(md, 0, 99, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, 0, ct, 11));
    OK(PtlCTInc(ct, one));
    OK(PtlCTWait(second, 100, &value));
    CHECK(value.success == 100);
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    OK(PtlMEUnlink(me));
    OK(PtlCTFree(second));
    SAYS(PTL_ARG_INVALID, PtlCTFree(second));
}

/* What the counter has set off, and nothing before: its events, and what lies at the target then. */
static void step(ptl_handle_ct_t starter, int first, int second, int32_t then)
{
    ptl_ct_event_t one = {1, 0};
    ptl_event_t none;
    SAYS(PTL_EQ_EMPTY, PtlEQGet(eq, &none));
    OK(PtlCTInc(starter, one));
    next_event(eq, first, PTL_NI_OK);
    if (second != first)
        next_event(eq, second, PTL_NI_OK);
    CHECK(memcmp(target, &then, 4) == 0);
}

static void triggered(void)
{
    ptl_handle_ct_t starter, set;
    ptl_handle_me_t me;
    ptl_ct_event_t one = {1, 0}, nine = {9, 2}, value;
    ptl_me_t quiet = entry(target, SIZE, PTL_ME_EVENT_LINK_DISABLE | PTL_ME_EVENT_COMM_DISABLE);
    int32_t theirs = 5, ours = 9, compared = 23, seen[] = {5, 14, 23};
    memcpy(target, &theirs, 4);
    memcpy(origin, &ours, 4);
    OK(PtlCTAlloc(ni, &starter));
    OK(PtlCTAlloc(ni, &set));
    OK(PtlMEAppend(ni, pt, &quiet, PTL_PRIORITY_LIST, 0, &me));
    OK(PtlTriggeredCTSet(set, nine, starter, 5));
    OK(PtlTriggeredSwap(md, 72, md, 0, 4, self, pt, KEY, 0, 0, 0, &compared, PTL_CSWAP, PTL_INT32_T, starter, 4));
    OK(PtlTriggeredFetchAtomic(md, 68, md, 0, 4, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT32_T, starter, 3));
    OK(PtlTriggeredAtomic(md, 0, 4, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT32_T, starter, 2));
    OK(PtlTriggeredGet(md, 64, 4, self, pt, KEY, 0, 0, starter, 1));
    step(starter, PTL_EVENT_REPLY, PTL_EVENT_REPLY, 5);
    step(starter, PTL_EVENT_SEND, PTL_EVENT_ACK, 14);
    step(starter, PTL_EVENT_SEND, PTL_EVENT_REPLY, 23);
    step(starter, PTL_EVENT_SEND, PTL_EVENT_REPLY, 9);
    CHECK(memcmp(origin + 64, seen, sizeof seen) == 0);
    OK(PtlCTGet(set, &value));
    CHECK(value.success == 0 && value.failure == 0);
    OK(PtlCTInc(starter, one));
    OK(PtlCTWait(set, 9, &value));
    CHECK(value.success == 9 && value.failure == 2);
    OK(PtlMEUnlink(me));
    OK(PtlCTFree(set));
    OK(PtlCTFree(starter));
}

/* Long doubles against the compiler's own. */
static void long_doubles(void)
{
    union { long double value; char bytes[16]; } a, b;
    uint64_t state = 42;
    for (int round = 0; round < 2000; round++) {
        memset(a.bytes, 0, 16);
        memset(b.bytes, 0, 16);
        for (int at = 0; at < 20; at++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            (at < 10 ? a.bytes : b.bytes)[at % 10] = (char) (state >> 56);
        }
        /* The explicit bit, and exponents that meet: near each other, or at the ends. */
        a.bytes[7] |= (char) 0x80;
        b.bytes[7] |= (char) 0x80;
        if (round % 4) {
            b.bytes[9] = a.bytes[9];
            b.bytes[8] = (char) (a.bytes[8] + (char) (state % 140) - 70);
        }
        if (round % 7 == 0)
            a.bytes[9] = a.bytes[8] = 0, a.bytes[7] &= 0x7f;
        memcpy(target, a.bytes, 16);
        memcpy(origin, b.bytes, 16);
        long double sum = a.value + b.value, product = a.value * b.value;
        OK(PtlFetchAtomic(md, 64, md, 0, 16, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_LONG_DOUBLE));
        next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
        next_event(eq, PTL_EVENT_REPLY, PTL_NI_OK);
        CHECK(memcmp(origin + 64, a.bytes, 16) == 0);
        CHECK(sum != sum || memcmp(target, &sum, 10) == 0);
        memcpy(target, a.bytes, 16);
        OK(PtlFetchAtomic(md, 64, md, 0, 16, self, pt, KEY, 0, 0, 0, PTL_PROD, PTL_LONG_DOUBLE));
        next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
        next_event(eq, PTL_EVENT_REPLY, PTL_NI_OK);
        CHECK(product != product || memcmp(target, &product, 10) == 0);
    }
}

static void atomics(void)
{
    ptl_handle_me_t me;
    ptl_me_t one = entry(target, SIZE, PTL_ME_EVENT_LINK_DISABLE | PTL_ME_EVENT_COMM_DISABLE);
    OK(PtlMEAppend(ni, pt, &one, PTL_PRIORITY_LIST, 0, &me));
    double left = 1.5, right = 2.25;
    memcpy(target, &left, 8);
    memcpy(origin, &right, 8);
    OK(PtlAtomic(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_PROD, PTL_DOUBLE));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    next_event(eq, PTL_EVENT_ACK, PTL_NI_OK);
    memcpy(&left, target, 8);
    CHECK(left == 3.375);
    int32_t old = 5, new = 9;
    memcpy(target, &old, 4);
    memcpy(origin, &new, 4);
    int32_t compared = 6;
    OK(PtlSwap(md, 64, md, 0, 4, self, pt, KEY, 0, 0, 0, &compared, PTL_CSWAP_GT, PTL_INT32_T));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    next_event(eq, PTL_EVENT_REPLY, PTL_NI_OK);
    CHECK(memcmp(target, &new, 4) == 0 && memcmp(origin + 64, &old, 4) == 0);
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, 0, 4, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_CSWAP, PTL_INT32_T));
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_BOR, PTL_DOUBLE));
    OK(PtlAtomicSync());
    long_doubles();
    OK(PtlMEUnlink(me));
}

static void segments(void)
{
    ptl_iovec_t parts[] = {{target + 10, 2}, {target, 3}}, too_many[5];
    ptl_me_t scattered = entry(parts, 2, PTL_IOVEC | PTL_ME_USE_ONCE | PTL_ME_EVENT_LINK_DISABLE
                                             | PTL_ME_EVENT_UNLINK_DISABLE);
    ptl_handle_me_t me;
    OK(PtlMEAppend(ni, pt, &scattered, PTL_PRIORITY_LIST, 0, &me));
    memset(parts, 0, sizeof parts);
    memset(target, 0, SIZE);
    memcpy(origin, "abcdefgh", 8);
    OK(PtlPut(md, 0, 8, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, 0));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    CHECK(next_event(eq, PTL_EVENT_PUT, PTL_NI_OK).mlength == 5);
    CHECK(memcmp(target + 10, "ab", 3) == 0 && memcmp(target, "cde", 4) == 0);
    memset(too_many, 0, sizeof too_many);
    scattered.start = too_many;
    scattered.length = 5;
    SAYS(PTL_ARG_INVALID, PtlMEAppend(ni, pt, &scattered, PTL_PRIORITY_LIST, 0, &me));
    ptl_md_t gathered = {too_many, 5, PTL_IOVEC, PTL_EQ_NONE, PTL_CT_NONE};
    ptl_handle_md_t from;
    SAYS(PTL_ARG_INVALID, PtlMDBind(ni, &gathered, &from));
}

/* BXI's extension: waiting for events with poll. */
static void descriptors(void)
{
    struct pollfd fd;
    ptl_event_t event;
    CHECK(PtlNFDs(ni) == 1 && PtlNFDs(PTL_INVALID_HANDLE) == 0);
    PtlPollEvents(ni, &fd);
    CHECK(PtlPollFDs(ni, &fd, POLLIN) == 1);
    CHECK(poll(&fd, 1, 0) == 0);
    OK(PtlPut(md, 0, 0, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, 0));
    CHECK(poll(&fd, 1, 10000) == 1 && PtlPollEvents(ni, &fd) == POLLIN);
    CHECK(PtlPollFDs(ni, &fd, POLLIN) == 1);
    CHECK(poll(&fd, 1, 0) == 1);
    OK(PtlEQGet(eq, &event));
    CHECK(event.type == PTL_EVENT_SEND);
}

#ifdef HAS_BULL_EXTENSION
static const int OTHER_KIND = PTL_OK;
#else
static const int OTHER_KIND = PTL_ARG_INVALID;
#endif

/* Where the two structures are one, either goes to both kinds of interface. */
static void entries_of_the_other_kind(void)
{
    ptl_handle_ni_t plain;
    ptl_handle_me_t me;
    ptl_handle_le_t le;
    uint32_t place;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, 0, 0, &plain));
    OK(PtlPTAlloc(plain, 0, PTL_EQ_NONE, PTL_PT_ANY, &place));
    ptl_me_t slab = entry(target, SIZE, PTL_ME_MANAGE_LOCAL);
    slab.min_free = SIZE / 2;
    SAYS(OTHER_KIND, PtlMEAppend(plain, place, &slab, PTL_PRIORITY_LIST, 0, &me));
    SAYS(OTHER_KIND, PtlMESearch(plain, place, &slab, PTL_SEARCH_ONLY, 0));
    if (OTHER_KIND == PTL_OK)
        OK(PtlMEUnlink(me));
    OK(PtlNIFini(plain));
    ptl_le_t flat = list_entry(0);
    SAYS(OTHER_KIND, PtlLEAppend(ni, pt, &flat, PTL_PRIORITY_LIST, 0, &le));
    if (OTHER_KIND == PTL_OK)
        OK(PtlLEUnlink(le));
}

/* Without matching: what came unexpectedly is found, taken, and gone. */
static void list_entries(void)
{
    ptl_handle_ni_t plain;
    ptl_handle_eq_t queue;
    ptl_handle_md_t from;
    ptl_handle_le_t le;
    uint32_t place;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_NO_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, 0, 0, &plain));
    OK(PtlEQAlloc(plain, 16, &queue));
    OK(PtlPTAlloc(plain, 0, queue, PTL_PT_ANY, &place));
    ptl_md_t all = {origin, SIZE, PTL_MD_EVENT_SEND_DISABLE, queue, PTL_CT_NONE};
    OK(PtlMDBind(plain, &all, &from));
    ptl_le_t over = list_entry(0), once = list_entry(PTL_ME_USE_ONCE);
    OK(PtlLEAppend(plain, place, &over, PTL_OVERFLOW_LIST, 0, &le));
    OK(PtlPut(from, 0, 5, PTL_NO_ACK_REQ, self, place, 0, 8, 0, 4711));
    CHECK((int) next_event(queue, PTL_EVENT_PUT, PTL_NI_OK).ptl_list == PTL_OVERFLOW_LIST);
    SAYS(PTL_IN_USE, PtlLEUnlink(le));
    OK(PtlLESearch(plain, place, &once, PTL_SEARCH_ONLY, &once));
    ptl_event_t found = next_event(queue, PTL_EVENT_SEARCH, PTL_NI_OK);
    CHECK(found.start == target + 8 && found.mlength == 5 && found.hdr_data == 4711 && found.user_ptr == (void *) &once);
    OK(PtlLESearch(plain, place, &once, PTL_SEARCH_DELETE, 0));
    CHECK(next_event(queue, PTL_EVENT_PUT_OVERFLOW, PTL_NI_OK).start == target + 8);
    OK(PtlLESearch(plain, place, &once, PTL_SEARCH_ONLY, 0));
    next_event(queue, PTL_EVENT_SEARCH, PTL_NI_NO_MATCH);
    SAYS(PTL_ARG_INVALID, PtlLESearch(plain, place, &once, 2, 0));
    OK(PtlLEUnlink(le));
    OK(PtlNIFini(plain));
}

#ifdef HAS_BULL_EXTENSION
/* Text, and the end of all waiting. */
static void bull_extension(void)
{
    ptl_event_t event;
    unsigned int which;
    char line[50];
    CHECK(strcmp(PtlToStr(PTL_NO_SPACE, 0), "PTL_NO_SPACE") == 0);
    CHECK(strcmp(PtlToStr(PTL_EVENT_PUT, 1), "PTL_EVENT_PUT") == 0);
    CHECK(strcmp(PtlToStr(PTL_NI_SEGV, 2), "PTL_NI_SEGV") == 0);
    CHECK(PtlFailTypeSize() == 8);
    OK(PtlPut(md, 0, 0, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, 0));
    OK(PtlEQPoll(&eq, 1, 10000, &event, 0));
    OK(PtlEvToStr(0, &event, line));
    CHECK(strcmp(line, "SEND OK 0") == 0);
    SAYS(PTL_ARG_INVALID, PtlEvToStr(0, &event, 0));
    PtlAbort();
    SAYS(PTL_ABORTED, PtlEQWait(eq, &event));
    SAYS(PTL_ABORTED, PtlEQPoll(&eq, 1, PTL_TIME_FOREVER, &event, &which));
    ptl_ct_event_t count;
    ptl_size_t many = 1000;
    SAYS(PTL_ABORTED, PtlCTWait(ct, many, &count));
    SAYS(PTL_ABORTED, PtlCTPoll(&ct, &many, 1, PTL_TIME_FOREVER, &count, &which));
}
#else
static void bull_extension(void)
{
    ptl_event_t event;
    SAYS(PTL_ARG_INVALID, PtlEQPoll(&eq, 1, 0, &event, 0));
}
#endif

/* All memory as one entry: what a peer aims beside it is an error, not a crash. */
static void everything(void)
{
    ptl_handle_me_t me;
    ptl_me_t all = entry(0, (ptl_size_t) -1, PTL_ME_EVENT_LINK_DISABLE | PTL_ME_EVENT_SUCCESS_DISABLE);
    OK(PtlMEAppend(ni, pt, &all, PTL_PRIORITY_LIST, 0, &me));
    OK(PtlPut(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, (ptl_size_t) (uintptr_t) target, 0, 0));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    next_event(eq, PTL_EVENT_ACK, PTL_NI_OK);
    CHECK(memcmp(target, origin, 8) == 0);
    OK(PtlPut(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 4096, 0, 0));
    next_event(eq, PTL_EVENT_SEND, PTL_NI_OK);
    next_event(eq, PTL_EVENT_PUT, PTL_NI_SEGV);
    next_event(eq, PTL_EVENT_ACK, PTL_NI_SEGV);
    OK(PtlMEUnlink(me));
}

int main(void)
{
    alarm(PATIENCE);
    CHECK(strcmp(RipstopPortalsAbi(), FAMILY) == 0);
    before_init();
    for (int life = 0; life < 2; life++) {
        OK(PtlInit());
        interfaces();
        tables_and_descriptors();
        put_and_get();
        unexpected();
        counters();
        triggered();
        atomics();
        segments();
        everything();
        descriptors();
        entries_of_the_other_kind();
        list_entries();
        bull_extension();
        OK(PtlStartBundle(ni));
        OK(PtlEndBundle(ni));
        OK(PtlMDRelease(md));
        OK(PtlPTFree(ni, pt));
        OK(PtlEQFree(eq));
        OK(PtlCTFree(ct));
        OK(PtlNIFini(ni));
        PtlFini();
    }
    puts("ok");
    return 0;
}
