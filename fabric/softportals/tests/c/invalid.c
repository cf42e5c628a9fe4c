/* One process: every function with each of its arguments wrong, and where there is no library to ask. */
#include "check.h"

enum { SIZE = 4096, KEY = 7, KIND = PTL_NI_MATCHING | PTL_NI_PHYSICAL };

/* Handles of each kind, right or wrong. */
struct handles {
    ptl_handle_ni_t ni;
    ptl_handle_eq_t eq;
    ptl_handle_ct_t ct;
    ptl_handle_md_t md;
    ptl_handle_me_t me;
};

static char memory[SIZE];
static ptl_process_t self;
static uint32_t pt;
static const ptl_ct_event_t one = {1, 0};

static ptl_me_t entry(ptl_handle_ct_t ct)
{
    ptl_me_t me;
    memset(&me, 0, sizeof me);
    me.start = memory;
    me.length = SIZE;
    me.ct_handle = ct;
    me.uid = PTL_UID_ANY;
    me.options = PTL_ME_OP_PUT | PTL_ME_EVENT_LINK_DISABLE;
    me.match_id.phys.nid = PTL_NID_ANY;
    me.match_id.phys.pid = PTL_PID_ANY;
    me.match_bits = KEY;
    return me;
}

static ptl_le_t list_entry(void)
{
    ptl_me_t me = entry(PTL_CT_NONE);
    ptl_le_t le;
    memset(&le, 0, sizeof le);
    le.start = me.start;
    le.length = me.length;
    le.ct_handle = PTL_CT_NONE;
    le.uid = me.uid;
    le.options = me.options;
    return le;
}

static void all_of_the_interface_say(int code, ptl_handle_ni_t ni)
{
    int number;
    uint32_t index;
    ptl_size_t size;
    ptl_process_t id;
    ptl_handle_any_t made;
    ptl_me_t me = entry(PTL_CT_NONE);
    ptl_le_t le = list_entry();
    ptl_md_t md = {memory, SIZE, 0, PTL_EQ_NONE, PTL_CT_NONE};
    SAYS(code, PtlNIStatus(ni, PTL_SR_DROP_COUNT, &number));
    SAYS(code, PtlSetMap(ni, 1, &self));
    SAYS(code, PtlGetMap(ni, 1, &id, &size));
    SAYS(code, PtlPTAlloc(ni, 0, PTL_EQ_NONE, PTL_PT_ANY, &index));
    SAYS(code, PtlPTFree(ni, pt));
    SAYS(code, PtlPTDisable(ni, pt));
    SAYS(code, PtlPTEnable(ni, pt));
    SAYS(code, PtlGetUid(ni, &index));
    SAYS(code, PtlGetId(ni, &id));
    SAYS(code, PtlGetPhysId(ni, &id));
    SAYS(code, PtlMDBind(ni, &md, &made));
    SAYS(code, PtlLEAppend(ni, pt, &le, PTL_PRIORITY_LIST, 0, &made));
    SAYS(code, PtlMEAppend(ni, pt, &me, PTL_PRIORITY_LIST, 0, &made));
    SAYS(code, PtlLESearch(ni, pt, &le, PTL_SEARCH_ONLY, 0));
    SAYS(code, PtlMESearch(ni, pt, &me, PTL_SEARCH_ONLY, 0));
    SAYS(code, PtlEQAlloc(ni, 8, &made));
    SAYS(code, PtlCTAlloc(ni, &made));
    SAYS(code, PtlStartBundle(ni));
    SAYS(code, PtlEndBundle(ni));
    SAYS(code, PtlNIFini(ni));
}

static void all_of_queues_and_counters_say(int code, struct handles h)
{
    ptl_event_t event;
    ptl_ct_event_t count;
    ptl_size_t test = 1;
    unsigned int which;
    SAYS(code, PtlEQGet(h.eq, &event));
    SAYS(code, PtlEQWait(h.eq, &event));
    SAYS(code, PtlEQPoll(&h.eq, 1, PTL_TIME_FOREVER, &event, &which));
    SAYS(code, PtlEQFree(h.eq));
    SAYS(code, PtlCTGet(h.ct, &count));
    SAYS(code, PtlCTWait(h.ct, 1, &count));
    SAYS(code, PtlCTPoll(&h.ct, &test, 1, PTL_TIME_FOREVER, &count, &which));
    SAYS(code, PtlCTSet(h.ct, one));
    SAYS(code, PtlCTInc(h.ct, one));
    SAYS(code, PtlCTCancelTriggered(h.ct));
    SAYS(code, PtlCTFree(h.ct));
    SAYS(code, PtlMDRelease(h.md));
    SAYS(code, PtlMEUnlink(h.me));
    SAYS(code, PtlLEUnlink(h.me));
}

/* By `get` to get, or to be answered by; by `md` else. */
static void all_operations_say(int code, ptl_handle_md_t get, ptl_handle_md_t md)
{
    int64_t operand = 0;
    SAYS(code, PtlPut(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0));
    SAYS(code, PtlGet(get, 0, 8, self, pt, KEY, 0, 0));
    SAYS(code, PtlAtomic(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(code, PtlFetchAtomic(get, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(code, PtlSwap(get, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, &operand, PTL_CSWAP, PTL_INT64_T));
}

/* As above; what a counter starts. */
static void all_that_is_triggered_says(int code, ptl_handle_md_t get, ptl_handle_md_t md, ptl_handle_ct_t of,
                                       ptl_handle_ct_t ct)
{
    int64_t operand = 0;
    SAYS(code, PtlTriggeredPut(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, ct, 1));
    SAYS(code, PtlTriggeredGet(get, 0, 8, self, pt, KEY, 0, 0, ct, 1));
    SAYS(code, PtlTriggeredAtomic(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T, ct, 1));
    SAYS(code, PtlTriggeredFetchAtomic(get, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T, ct, 1));
    SAYS(code,
         PtlTriggeredSwap(get, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, &operand, PTL_CSWAP, PTL_INT64_T, ct, 1));
    SAYS(code, PtlTriggeredCTInc(of, one, ct, 1));
    SAYS(code, PtlTriggeredCTSet(of, one, ct, 1));
}

static void all_say(int code, struct handles h)
{
    all_of_the_interface_say(code, h.ni);
    all_of_queues_and_counters_say(code, h);
    all_operations_say(code, h.md, h.md);
    all_that_is_triggered_says(code, h.md, h.md, h.ct, h.ct);
}

/* Before and after there is a library, whatever the handles are. */
static void nothing_is_there(struct handles h)
{
    ptl_handle_ni_t ni;
    all_say(PTL_NO_INIT, h);
    SAYS(PTL_NO_INIT, PtlNIInit(PTL_IFACE_DEFAULT, KIND, PTL_PID_ANY, 0, 0, &ni));
    SAYS(PTL_NO_INIT, PtlNIHandle(h.eq, &ni));
    SAYS(PTL_NO_INIT, PtlAtomicSync());
}

static struct handles none(void)
{
    ptl_handle_any_t none = PTL_INVALID_HANDLE;
    struct handles h = {none, none, none, none, none};
    return h;
}

static struct handles open_all(void)
{
    struct handles h;
    ptl_me_t me = entry(PTL_CT_NONE);
    OK(PtlNIInit(PTL_IFACE_DEFAULT, KIND, PTL_PID_ANY, 0, 0, &h.ni));
    OK(PtlGetPhysId(h.ni, &self));
    OK(PtlEQAlloc(h.ni, 64, &h.eq));
    OK(PtlCTAlloc(h.ni, &h.ct));
    OK(PtlPTAlloc(h.ni, 0, h.eq, PTL_PT_ANY, &pt));
    ptl_md_t all = {memory, SIZE, 0, h.eq, h.ct};
    OK(PtlMDBind(h.ni, &all, &h.md));
    OK(PtlMEAppend(h.ni, pt, &me, PTL_PRIORITY_LIST, 0, &h.me));
    return h;
}

static void close_all(struct handles h)
{
    OK(PtlMEUnlink(h.me));
    OK(PtlMDRelease(h.md));
    OK(PtlPTFree(h.ni, pt));
    OK(PtlCTFree(h.ct));
    OK(PtlEQFree(h.eq));
}

/* Where a call takes two handles, each of them by itself. */
static void one_handle_of_two(struct handles h, ptl_handle_any_t bad)
{
    uint32_t index;
    ptl_handle_any_t made;
    ptl_md_t no_queue = {memory, SIZE, 0, bad, PTL_CT_NONE}, no_counter = {memory, SIZE, 0, PTL_EQ_NONE, bad};
    ptl_me_t me = entry(bad);
    SAYS(PTL_ARG_INVALID, PtlPTAlloc(h.ni, 0, bad, PTL_PT_ANY, &index));
    SAYS(PTL_ARG_INVALID, PtlMDBind(h.ni, &no_queue, &made));
    SAYS(PTL_ARG_INVALID, PtlMDBind(h.ni, &no_counter, &made));
    SAYS(PTL_ARG_INVALID, PtlMEAppend(h.ni, pt, &me, PTL_PRIORITY_LIST, 0, &made));
    SAYS(PTL_ARG_INVALID, PtlMESearch(h.ni, pt, &me, PTL_SEARCH_ONLY, 0));
}

static void one_descriptor_of_two(struct handles h, ptl_handle_any_t bad)
{
    int64_t operand = 0;
    ptl_handle_md_t md = h.md;
    SAYS(PTL_ARG_INVALID, PtlFetchAtomic(bad, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlFetchAtomic(md, 0, bad, 8, 8, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlSwap(bad, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, &operand, PTL_SWAP, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlSwap(md, 0, bad, 8, 8, self, pt, KEY, 0, 0, 0, &operand, PTL_SWAP, PTL_INT64_T));
    all_that_is_triggered_says(PTL_ARG_INVALID, md, md, h.ct, bad);
    all_that_is_triggered_says(PTL_ARG_INVALID, bad, bad, bad, h.ct);
}

/* None of one kind is none of another, and no handle at all is not none. */
static void none_of_another_kind(struct handles h)
{
    if (PtlHandleIsEqual(PTL_EQ_NONE, PTL_INVALID_HANDLE))
        return;
    one_handle_of_two(h, PTL_INVALID_HANDLE);
    ptl_handle_any_t made;
    uint32_t index;
    ptl_md_t no_queue = {memory, SIZE, 0, PTL_CT_NONE, PTL_CT_NONE};
    ptl_md_t no_counter = {memory, SIZE, 0, PTL_EQ_NONE, PTL_EQ_NONE};
    ptl_me_t me = entry(PTL_EQ_NONE);
    SAYS(PTL_ARG_INVALID, PtlPTAlloc(h.ni, 0, PTL_CT_NONE, PTL_PT_ANY, &index));
    SAYS(PTL_ARG_INVALID, PtlMDBind(h.ni, &no_queue, &made));
    SAYS(PTL_ARG_INVALID, PtlMDBind(h.ni, &no_counter, &made));
    SAYS(PTL_ARG_INVALID, PtlMEAppend(h.ni, pt, &me, PTL_PRIORITY_LIST, 0, &made));
}

/* Successes and failures at once. */
static void increments(struct handles h)
{
    ptl_ct_event_t both = {1, 1};
    SAYS(PTL_ARG_INVALID, PtlCTInc(h.ct, both));
    SAYS(PTL_ARG_INVALID, PtlTriggeredCTInc(h.ct, both, h.ct, 1));
}

/* No place for what a call gives, or nothing where it looks for something. */
static void nowhere(struct handles h)
{
    ptl_size_t size = 1;
    ptl_process_t id;
    ptl_event_t event;
    ptl_ct_event_t count;
    ptl_handle_any_t made;
    unsigned int which;
    ptl_md_t md = {memory, SIZE, 0, PTL_EQ_NONE, PTL_CT_NONE};
    ptl_me_t me = entry(PTL_CT_NONE);
    SAYS(PTL_ARG_INVALID, PtlNIInit(PTL_IFACE_DEFAULT, KIND, PTL_PID_ANY, 0, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlNIHandle(h.eq, 0));
    SAYS(PTL_ARG_INVALID, PtlNIStatus(h.ni, PTL_SR_DROP_COUNT, 0));
    SAYS(PTL_ARG_INVALID, PtlPTAlloc(h.ni, 0, PTL_EQ_NONE, PTL_PT_ANY, 0));
    SAYS(PTL_ARG_INVALID, PtlGetUid(h.ni, 0));
    SAYS(PTL_ARG_INVALID, PtlGetId(h.ni, 0));
    SAYS(PTL_ARG_INVALID, PtlGetPhysId(h.ni, 0));
    SAYS(PTL_ARG_INVALID, PtlMDBind(h.ni, 0, &made));
    SAYS(PTL_ARG_INVALID, PtlMDBind(h.ni, &md, 0));
    SAYS(PTL_ARG_INVALID, PtlMEAppend(h.ni, pt, 0, PTL_PRIORITY_LIST, 0, &made));
    SAYS(PTL_ARG_INVALID, PtlMEAppend(h.ni, pt, &me, PTL_PRIORITY_LIST, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlMESearch(h.ni, pt, 0, PTL_SEARCH_ONLY, 0));
    SAYS(PTL_ARG_INVALID, PtlEQAlloc(h.ni, 8, 0));
    SAYS(PTL_ARG_INVALID, PtlEQGet(h.eq, 0));
    SAYS(PTL_ARG_INVALID, PtlEQWait(h.eq, 0));
    SAYS(PTL_ARG_INVALID, PtlEQPoll(0, 1, 0, &event, &which));
    SAYS(PTL_ARG_INVALID, PtlEQPoll(&h.eq, 0, 0, &event, &which));
    SAYS(PTL_ARG_INVALID, PtlEQPoll(&h.eq, 1, 0, 0, &which));
    SAYS(PTL_ARG_INVALID, PtlCTAlloc(h.ni, 0));
    SAYS(PTL_ARG_INVALID, PtlCTGet(h.ct, 0));
    SAYS(PTL_ARG_INVALID, PtlCTWait(h.ct, 1, 0));
    SAYS(PTL_ARG_INVALID, PtlCTPoll(0, &size, 1, 0, &count, &which));
    SAYS(PTL_ARG_INVALID, PtlCTPoll(&h.ct, 0, 1, 0, &count, &which));
    SAYS(PTL_ARG_INVALID, PtlCTPoll(&h.ct, &size, 0, 0, &count, &which));
    SAYS(PTL_ARG_INVALID, PtlCTPoll(&h.ct, &size, 1, 0, 0, &which));
    SAYS(PTL_ARG_INVALID, PtlSwap(h.md, 0, h.md, 8, 8, self, pt, KEY, 0, 0, 0, 0, PTL_CSWAP, PTL_INT64_T));
    ptl_handle_ni_t logical;
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_LOGICAL, PTL_PID_ANY, 0, 0, &logical));
    SAYS(PTL_ARG_INVALID, PtlSetMap(logical, 1, 0));
    SAYS(PTL_ARG_INVALID, PtlSetMap(logical, 0, &self));
    ptl_process_t other = self;
    other.phys.nid++;
    SAYS(PTL_ARG_INVALID, PtlSetMap(logical, 1, &other));
    OK(PtlSetMap(logical, 1, &self));
    SAYS(PTL_ARG_INVALID, PtlGetMap(logical, 1, 0, &size));
    OK(PtlGetMap(logical, 1, &id, &size));
    id.rank = 1;
    OK(PtlMDBind(logical, &md, &made));
    SAYS(PTL_ARG_INVALID, PtlPut(made, 0, 8, PTL_NO_ACK_REQ, id, 0, KEY, 0, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlGet(made, 0, 8, id, 0, KEY, 0, 0));
    OK(PtlMDRelease(made));
    OK(PtlNIFini(logical));
}

/* Numbers that mean nothing. */
static void numbers(struct handles h)
{
    enum { NO_TABLE = 1 << 20, ODD = 1 << 30 };
    int value;
    uint32_t index;
    ptl_handle_any_t made;
    ptl_md_t md = {memory, SIZE, ODD, PTL_EQ_NONE, PTL_CT_NONE};
    ptl_me_t me = entry(PTL_CT_NONE);
    SAYS(PTL_ARG_INVALID, PtlNIInit(PTL_IFACE_DEFAULT, KIND | ODD, PTL_PID_ANY, 0, 0, &made));
    SAYS(PTL_ARG_INVALID, PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_PHYSICAL, PTL_PID_ANY, 0, 0, &made));
    SAYS(PTL_ARG_INVALID,
         PtlNIInit(PTL_IFACE_DEFAULT, KIND | PTL_NI_NO_MATCHING, PTL_PID_ANY, 0, 0, &made));
    SAYS(PTL_ARG_INVALID, PtlNIInit(PTL_IFACE_DEFAULT, KIND | PTL_NI_LOGICAL, PTL_PID_ANY, 0, 0, &made));
    SAYS(PTL_ARG_INVALID, PtlNIStatus(h.ni, 99, &value));
    SAYS(PTL_ARG_INVALID, PtlPTAlloc(h.ni, ODD, h.eq, PTL_PT_ANY, &index));
    SAYS(PTL_ARG_INVALID, PtlPTAlloc(h.ni, 0, h.eq, NO_TABLE, &index));
    uint32_t tables[] = {NO_TABLE, pt + 1};
    for (int at = 0; at < 2; at++) {
        SAYS(PTL_ARG_INVALID, PtlPTFree(h.ni, tables[at]));
        SAYS(PTL_ARG_INVALID, PtlPTDisable(h.ni, tables[at]));
        SAYS(PTL_ARG_INVALID, PtlPTEnable(h.ni, tables[at]));
        SAYS(PTL_ARG_INVALID, PtlMEAppend(h.ni, tables[at], &me, PTL_PRIORITY_LIST, 0, &made));
        SAYS(PTL_ARG_INVALID, PtlMESearch(h.ni, tables[at], &me, PTL_SEARCH_ONLY, 0));
    }
    SAYS(PTL_ARG_INVALID, PtlMDBind(h.ni, &md, &made));
    SAYS(PTL_ARG_INVALID, PtlMEAppend(h.ni, pt, &me, 2, 0, &made));
    SAYS(PTL_ARG_INVALID, PtlMESearch(h.ni, pt, &me, 2, 0));
    me.options |= ODD;
    SAYS(PTL_ARG_INVALID, PtlMEAppend(h.ni, pt, &me, PTL_PRIORITY_LIST, 0, &made));
    SAYS(PTL_ARG_INVALID, PtlMESearch(h.ni, pt, &me, PTL_SEARCH_ONLY, 0));
}

/* Operations that reach over their descriptor, or whose operator and datatype do not go together. */
static void operations(struct handles h)
{
    int64_t operand = 0;
    ptl_handle_md_t md = h.md;
    SAYS(PTL_ARG_INVALID, PtlPut(md, SIZE - 7, 8, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlPut(md, (ptl_size_t) -8, 8, PTL_NO_ACK_REQ, self, pt, KEY, 0, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlPut(md, 0, 8, 9, self, pt, KEY, 0, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlGet(md, SIZE - 7, 8, self, pt, KEY, 0, 0));
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, SIZE - 7, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, 0, 8, 9, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, 99, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, 0, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_SUM, 99));
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, 0, SIZE, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlFetchAtomic(md, SIZE - 7, md, 8, 8, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlFetchAtomic(md, 0, md, SIZE - 7, 8, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlFetchAtomic(md, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, PTL_CSWAP, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlFetchAtomic(md, 0, md, 0, SIZE, self, pt, KEY, 0, 0, 0, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlSwap(md, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, &operand, PTL_SUM, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlSwap(md, 0, md, 8, 16, self, pt, KEY, 0, 0, 0, &operand, PTL_CSWAP, PTL_INT64_T));
    SAYS(PTL_ARG_INVALID, PtlSwap(md, 0, md, 8, 8, self, pt, KEY, 0, 0, 0, &operand, PTL_CSWAP, 99));
    SAYS(PTL_ARG_INVALID, PtlTriggeredPut(md, SIZE - 7, 8, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, h.ct, 1));
    SAYS(PTL_ARG_INVALID, PtlTriggeredGet(md, SIZE - 7, 8, self, pt, KEY, 0, 0, h.ct, 1));
}

int main(void)
{
    alarm(PATIENCE);
    nothing_is_there(none());
    OK(PtlInit());
    all_say(PTL_ARG_INVALID, none());
    struct handles h = open_all(), shifted = {h.eq, h.ct, h.md, h.me, h.ni}, back = {h.me, h.ni, h.eq, h.ct, h.md};
    all_say(PTL_ARG_INVALID, shifted);
    all_say(PTL_ARG_INVALID, back);
    ptl_handle_any_t bad[] = {h.ni, h.me};
    for (int at = 0; at < 2; at++) {
        one_handle_of_two(h, bad[at]);
        one_descriptor_of_two(h, bad[at]);
    }
    none_of_another_kind(h);
    increments(h);
    nowhere(h);
    numbers(h);
    operations(h);
    /* Nothing of all that was done. */
    ptl_event_t event;
    ptl_ct_event_t count;
    SAYS(PTL_EQ_EMPTY, PtlEQGet(h.eq, &event));
    OK(PtlCTGet(h.ct, &count));
    CHECK(count.success == 0 && count.failure == 0);
    close_all(h);
    struct handles gone = h;
    gone.ni = PTL_INVALID_HANDLE;
    all_say(PTL_ARG_INVALID, gone);
    OK(PtlNIFini(h.ni));
    all_say(PTL_ARG_INVALID, h);
    PtlFini();
    nothing_is_there(h);
    puts("ok");
    return 0;
}
