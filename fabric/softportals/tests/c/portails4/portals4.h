/* What the test programs need of this family's interface: layouts and numbers. */
#ifndef TEST_PORTALS4_H
#define TEST_PORTALS4_H
#include <stdint.h>

typedef uint64_t ptl_size_t;
typedef void * ptl_handle_any_t;
typedef ptl_handle_any_t ptl_handle_ni_t, ptl_handle_eq_t, ptl_handle_ct_t, ptl_handle_md_t, ptl_handle_me_t, ptl_handle_le_t;
typedef uint32_t ptl_small_t;
typedef uint64_t ptl_time_t;
typedef union { uint32_t rank; struct { uint32_t nid, pid; } phys; } ptl_process_t;
typedef struct { ptl_size_t success, failure; } ptl_ct_event_t;
typedef struct { void *iov_base; ptl_size_t iov_len; } ptl_iovec_t;
typedef struct {
    void *start;
    ptl_size_t length;
    unsigned int options;
    ptl_handle_eq_t eq_handle;
    ptl_handle_ct_t ct_handle;
} ptl_md_t;
typedef struct {
    void *start;
    ptl_size_t length;
    ptl_handle_ct_t ct_handle;
    uint32_t uid;
    unsigned int options;
    ptl_process_t match_id;
    uint64_t match_bits, ignore_bits;
    ptl_size_t min_free;
} ptl_me_t;
typedef ptl_me_t ptl_le_t;
typedef struct {
    int max_entries, max_unexpected_headers, max_mds, max_cts, max_eqs, max_pt_index, max_iovecs, max_list_size,
        max_triggered_ops;
    ptl_size_t max_msg_size, max_atomic_size, max_fetch_atomic_size, max_waw_ordered_size, max_war_ordered_size,
        max_volatile_size;
    unsigned int features;
} ptl_ni_limits_t;
typedef struct {
    void *start, *user_ptr;
    uint64_t hdr_data, match_bits;
    ptl_size_t rlength, mlength, remote_offset;
    uint32_t uid;
    ptl_process_t initiator;
    ptl_small_t type, ptl_list;
    uint32_t pt_index;
    ptl_small_t ni_fail_type, atomic_operation, atomic_type;
} ptl_event_t;

enum {
    PTL_OK = 0x0, PTL_ARG_INVALID = 0x7, PTL_CT_NONE_REACHED = 0x20, PTL_EQ_DROPPED = 0x21, PTL_EQ_EMPTY = 0x22,
    PTL_FAIL = 0x6, PTL_IGNORED = 0x24, PTL_IN_USE = 0x8, PTL_LIST_TOO_LONG = 0x26, PTL_NO_INIT = 0x27,
    PTL_NO_SPACE = 0x28, PTL_PID_IN_USE = 0x29, PTL_PT_FULL = 0x2a, PTL_PT_EQ_NEEDED = 0x2b, PTL_PT_IN_USE = 0x2c,
    PTL_INTERRUPTED = 0x25,
    PTL_NI_MATCHING = 0x2, PTL_NI_NO_MATCHING = 0x8, PTL_NI_LOGICAL = 0x4, PTL_NI_PHYSICAL = 0x1,
    PTL_NI_OK = 0x0, PTL_NI_UNDELIVERABLE = 0x6, PTL_NI_DROPPED = 0x8, PTL_NI_PT_DISABLED = 0x7,
    PTL_NI_PERM_VIOLATION = 0x9, PTL_NI_OP_VIOLATION = 0xa, PTL_NI_NO_MATCH = 0xc, PTL_NI_SEGV = 0xb,
    PTL_SR_DROP_COUNT = 0x0, PTL_SR_PERMISSION_VIOLATIONS = 0x1, PTL_SR_OPERATION_VIOLATIONS = 0x2,
    PTL_PT_ONLY_USE_ONCE = 0x1, PTL_PT_FLOWCTRL = 0x4, PTL_PT_ONLY_TRUNCATE = 0x2, PTL_IOVEC = 0x80,
    PTL_MD_EVENT_SUCCESS_DISABLE = 0x1, PTL_MD_EVENT_SEND_DISABLE = 0x40, PTL_MD_EVENT_CT_SEND = 0x2,
    PTL_MD_EVENT_CT_REPLY = 0x4, PTL_MD_EVENT_CT_ACK = 0x8, PTL_MD_EVENT_CT_BYTES = 0x10, PTL_MD_UNORDERED = 0x20,
    PTL_MD_VOLATILE = 0x100,
    PTL_PRIORITY_LIST = 0x0, PTL_OVERFLOW_LIST = 0x1, PTL_SEARCH_ONLY = 0x0, PTL_SEARCH_DELETE = 0x1,
    PTL_ME_OP_PUT = 0x100, PTL_ME_OP_GET = 0x200, PTL_ME_USE_ONCE = 0x400, PTL_ME_UNEXPECTED_HDR_DISABLE = 0x10000,
    PTL_ME_IS_ACCESSIBLE = 0x40000, PTL_ME_EVENT_LINK_DISABLE = 0x8, PTL_ME_EVENT_COMM_DISABLE = 0x1,
    PTL_ME_EVENT_FLOWCTRL_DISABLE = 0x20000, PTL_ME_EVENT_SUCCESS_DISABLE = 0x2, PTL_ME_EVENT_OVER_DISABLE = 0x4,
    PTL_ME_EVENT_UNLINK_DISABLE = 0x2000, PTL_ME_EVENT_CT_COMM = 0x40, PTL_ME_EVENT_CT_OVERFLOW = 0x20,
    PTL_ME_EVENT_CT_BYTES = 0x10, PTL_ME_MANAGE_LOCAL = 0x4000, PTL_ME_NO_TRUNCATE = 0x8000,
    PTL_ME_MAY_ALIGN = 0x1000, PTL_ME_ACK_DISABLE = 0x800,
    PTL_NO_ACK_REQ = 0x0, PTL_ACK_REQ = 0x3, PTL_CT_ACK_REQ = 0x1, PTL_OC_ACK_REQ = 0x2,
    PTL_MIN = 0x0, PTL_MAX = 0x1, PTL_SUM = 0x2, PTL_PROD = 0x3, PTL_LOR = 0x4, PTL_LAND = 0x5, PTL_BOR = 0x8,
    PTL_BAND = 0x9, PTL_LXOR = 0x6, PTL_BXOR = 0xa, PTL_SWAP = 0xc, PTL_CSWAP = 0x14, PTL_CSWAP_NE = 0x15,
    PTL_CSWAP_LE = 0x13, PTL_CSWAP_LT = 0x11, PTL_CSWAP_GE = 0x12, PTL_CSWAP_GT = 0x10, PTL_MSWAP = 0x18,
    PTL_INT8_T = 0x0, PTL_UINT8_T = 0x1, PTL_INT16_T = 0x2, PTL_UINT16_T = 0x3, PTL_INT32_T = 0x4, PTL_UINT32_T = 0x5,
    PTL_FLOAT = 0xa, PTL_INT64_T = 0x6, PTL_UINT64_T = 0x7, PTL_DOUBLE = 0xc, PTL_FLOAT_COMPLEX = 0xb,
    PTL_DOUBLE_COMPLEX = 0xd, PTL_LONG_DOUBLE = 0x14, PTL_LONG_DOUBLE_COMPLEX = 0x15,
    PTL_EVENT_GET = 0x0, PTL_EVENT_GET_OVERFLOW = 0x1, PTL_EVENT_PUT = 0x2, PTL_EVENT_PUT_OVERFLOW = 0x3,
    PTL_EVENT_ATOMIC = 0x4, PTL_EVENT_ATOMIC_OVERFLOW = 0x5, PTL_EVENT_FETCH_ATOMIC = 0x6,
    PTL_EVENT_FETCH_ATOMIC_OVERFLOW = 0x7, PTL_EVENT_REPLY = 0x8, PTL_EVENT_SEND = 0x9, PTL_EVENT_ACK = 0xa,
    PTL_EVENT_PT_DISABLED = 0xb, PTL_EVENT_LINK = 0xf, PTL_EVENT_AUTO_UNLINK = 0xc, PTL_EVENT_AUTO_FREE = 0xd,
    PTL_EVENT_SEARCH = 0xe,
};
#define PTL_IFACE_DEFAULT ((uint32_t) 0x0)
#define PTL_PID_ANY ((uint32_t) 0x0)
#define PTL_PID_MAX ((uint32_t) 0xfff)
#define PTL_NID_ANY ((uint32_t) 0x0)
#define PTL_RANK_ANY ((uint32_t) 0x7fffff)
#define PTL_UID_ANY ((uint32_t) -1)
#define PTL_PT_ANY ((uint32_t) -1)
#define PTL_TIME_FOREVER ((ptl_time_t) -1)
#define FAMILY "portails4"
#define PTL_EQ_NONE 0
#define PTL_CT_NONE 0
#define PTL_INVALID_HANDLE 0
#define PTL_MAP_AGAIN PTL_IN_USE
#define SEARCHES_CLOSE 1
#define GETMAP_WITHOUT PTL_FAIL
#define GETID_WITHOUT PTL_FAIL

int PtlInit(void);
void PtlFini(void);
int PtlNIInit(unsigned int, unsigned int, uint32_t, const ptl_ni_limits_t *, ptl_ni_limits_t *, ptl_handle_ni_t *);
int PtlNIFini(ptl_handle_ni_t);
int PtlNIStatus(ptl_handle_ni_t, unsigned int, int *);
int PtlNIHandle(ptl_handle_any_t, ptl_handle_ni_t *);
int PtlSetMap(ptl_handle_ni_t, ptl_size_t, const ptl_process_t *);
int PtlGetMap(ptl_handle_ni_t, ptl_size_t, ptl_process_t *, ptl_size_t *);
int PtlPTAlloc(ptl_handle_ni_t, unsigned int, ptl_handle_eq_t, uint32_t, uint32_t *);
int PtlPTFree(ptl_handle_ni_t, uint32_t);
int PtlPTDisable(ptl_handle_ni_t, uint32_t);
int PtlPTEnable(ptl_handle_ni_t, uint32_t);
int PtlGetUid(ptl_handle_ni_t, uint32_t *);
int PtlGetId(ptl_handle_ni_t, ptl_process_t *);
int PtlGetPhysId(ptl_handle_ni_t, ptl_process_t *);
int PtlMDBind(ptl_handle_ni_t, const ptl_md_t *, ptl_handle_md_t *);
int PtlMDRelease(ptl_handle_md_t);
int PtlLEAppend(ptl_handle_ni_t, uint32_t, const ptl_le_t *, ptl_small_t, void *, ptl_handle_le_t *);
int PtlLEUnlink(ptl_handle_le_t);
int PtlLESearch(ptl_handle_ni_t, uint32_t, const ptl_le_t *, ptl_small_t, void *);
int PtlMEAppend(ptl_handle_ni_t, uint32_t, const ptl_me_t *, ptl_small_t, void *, ptl_handle_me_t *);
int PtlMEUnlink(ptl_handle_me_t);
int PtlMESearch(ptl_handle_ni_t, uint32_t, const ptl_me_t *, ptl_small_t, void *);
int PtlEQAlloc(ptl_handle_ni_t, ptl_size_t, ptl_handle_eq_t *);
int PtlEQFree(ptl_handle_eq_t);
int PtlEQGet(ptl_handle_eq_t, ptl_event_t *);
int PtlEQWait(ptl_handle_eq_t, ptl_event_t *);
int PtlEQPoll(const ptl_handle_eq_t *, unsigned int, ptl_time_t, ptl_event_t *, unsigned int *);
int PtlCTAlloc(ptl_handle_ni_t, ptl_handle_ct_t *);
int PtlCTFree(ptl_handle_ct_t);
int PtlCTCancelTriggered(ptl_handle_ct_t);
int PtlCTGet(ptl_handle_ct_t, ptl_ct_event_t *);
int PtlCTWait(ptl_handle_ct_t, ptl_size_t, ptl_ct_event_t *);
int PtlCTPoll(const ptl_handle_ct_t *, const ptl_size_t *, unsigned int, ptl_time_t, ptl_ct_event_t *, unsigned int *);
int PtlCTSet(ptl_handle_ct_t, ptl_ct_event_t);
int PtlCTInc(ptl_handle_ct_t, ptl_ct_event_t);
int PtlPut(ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_small_t, ptl_process_t, uint32_t, uint64_t, ptl_size_t, void *,
           uint64_t);
int PtlGet(ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_process_t, uint32_t, uint64_t, ptl_size_t, void *);
int PtlAtomic(ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_small_t, ptl_process_t, uint32_t, uint64_t, ptl_size_t, void *,
              uint64_t, ptl_small_t, ptl_small_t);
int PtlFetchAtomic(ptl_handle_md_t, ptl_size_t, ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_process_t, uint32_t, uint64_t,
                   ptl_size_t, void *, uint64_t, ptl_small_t, ptl_small_t);
int PtlSwap(ptl_handle_md_t, ptl_size_t, ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_process_t, uint32_t, uint64_t,
            ptl_size_t, void *, uint64_t, const void *, ptl_small_t, ptl_small_t);
int PtlTriggeredPut(ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_small_t, ptl_process_t, uint32_t, uint64_t, ptl_size_t,
                    void *, uint64_t, ptl_handle_ct_t, ptl_size_t);
int PtlTriggeredGet(ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_process_t, uint32_t, uint64_t, ptl_size_t, void *,
                    ptl_handle_ct_t, ptl_size_t);
int PtlTriggeredAtomic(ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_small_t, ptl_process_t, uint32_t, uint64_t, ptl_size_t,
                       void *, uint64_t, ptl_small_t, ptl_small_t, ptl_handle_ct_t, ptl_size_t);
int PtlTriggeredFetchAtomic(ptl_handle_md_t, ptl_size_t, ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_process_t, uint32_t,
                            uint64_t, ptl_size_t, void *, uint64_t, ptl_small_t, ptl_small_t, ptl_handle_ct_t, ptl_size_t);
int PtlTriggeredSwap(ptl_handle_md_t, ptl_size_t, ptl_handle_md_t, ptl_size_t, ptl_size_t, ptl_process_t, uint32_t, uint64_t,
                     ptl_size_t, void *, uint64_t, const void *, ptl_small_t, ptl_small_t, ptl_handle_ct_t, ptl_size_t);
int PtlTriggeredCTInc(ptl_handle_ct_t, ptl_ct_event_t, ptl_handle_ct_t, ptl_size_t);
int PtlTriggeredCTSet(ptl_handle_ct_t, ptl_ct_event_t, ptl_handle_ct_t, ptl_size_t);
int PtlAtomicSync(void);
int PtlStartBundle(ptl_handle_ni_t);
int PtlEndBundle(ptl_handle_ni_t);
int PtlHandleIsEqual(ptl_handle_any_t, ptl_handle_any_t);
#define HAS_BULL_EXTENSION
enum { PTL_ABORTED = 0x2f };
void PtlAbort(void);
const char *PtlToStr(int, unsigned int);
int PtlEvToStr(unsigned int, const ptl_event_t *, char *);
int PtlFailTypeSize(void);
struct pollfd;
int PtlNFDs(ptl_handle_ni_t);
int PtlPollFDs(ptl_handle_ni_t, struct pollfd *, int);
int PtlPollEvents(ptl_handle_ni_t, struct pollfd *);
const char *RipstopPortalsAbi(void);
#endif
