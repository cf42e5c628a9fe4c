/* One process: every operator on every datatype, against what the compiler makes of it. */
#include "check.h"
#include <complex.h>

enum { SIZE = 256, BEFORE = 128, KEY = 7, COUNT = 3, ROUNDS = 20 };

static ptl_handle_eq_t eq;
static ptl_handle_md_t md;
static ptl_process_t self;
static uint32_t pt;
static char target[SIZE], origin[SIZE];

static uint64_t state = 7;

static uint64_t noise(void)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return state >> 20 ^ state << 30;
}

/* Quarters, some of them negative. */
static int quarters(void)
{
    return (int) (noise() % 2001) - 1000;
}

/* Has the target's elements become something, and looks at what it says was there. */
static void fetch(int operator, int datatype, const void *theirs, const void *ours, size_t length)
{
    memcpy(target, theirs, length);
    memcpy(origin, ours, length);
    OK(PtlFetchAtomic(md, BEFORE, md, 0, length, self, pt, KEY, 0, 0, 0, operator, datatype));
    next_event(eq, PTL_EVENT_REPLY, PTL_NI_OK);
    CHECK(memcmp(origin + BEFORE, theirs, length) == 0);
}

static void swap(int operator, int datatype, const void *operand, const void *theirs, const void *ours, size_t length)
{
    memcpy(target, theirs, length);
    memcpy(origin, ours, length);
    OK(PtlSwap(md, BEFORE, md, 0, length, self, pt, KEY, 0, 0, 0, operand, operator, datatype));
    next_event(eq, PTL_EVENT_REPLY, PTL_NI_OK);
    CHECK(memcmp(origin + BEFORE, theirs, length) == 0);
}

/* No call takes them together. */
static void refuses(int operator, int datatype)
{
    int64_t operand[4] = {0};
    SAYS(PTL_ARG_INVALID, PtlAtomic(md, 0, 32, PTL_ACK_REQ, self, pt, KEY, 0, 0, 0, operator, datatype));
    SAYS(PTL_ARG_INVALID, PtlFetchAtomic(md, BEFORE, md, 0, 32, self, pt, KEY, 0, 0, 0, operator, datatype));
    SAYS(PTL_ARG_INVALID, PtlSwap(md, BEFORE, md, 0, 32, self, pt, KEY, 0, 0, 0, operand, operator, datatype));
}

/* Elements of `a` at the target and of `b` here, which make `value`. */
#define BECOMES(T, datatype, operator, value)                        \
    do {                                                             \
        T got[COUNT];                                                \
        fetch(operator, datatype, theirs, ours, sizeof theirs);      \
        memcpy(got, target, sizeof got);                             \
        for (int at = 0; at < COUNT; at++) {                         \
            T a = theirs[at], b = ours[at];                          \
            CHECK(got[at] == (T) (value));                           \
        }                                                            \
    } while (0)

/* The same of one element and an operand `c`. */
#define SWAPS(T, datatype, operator, value)                          \
    do {                                                             \
        T got, a = theirs[0], b = ours[0], near[] = {a, a - 1, a + 1, b}; \
        for (int at = 0; at < 4; at++) {                             \
            T c = near[at];                                          \
            swap(operator, datatype, &c, &a, &b, sizeof a);          \
            memcpy(&got, target, sizeof got);                        \
            CHECK(got == (T) (value));                               \
        }                                                            \
    } while (0)

/* For all numbers. */
#define NUMBERS(T, datatype, random)                                 \
    T theirs[COUNT], ours[COUNT];                                    \
    memset(theirs, 0, sizeof theirs);                                \
    memset(ours, 0, sizeof ours);                                    \
    for (int at = 0; at < COUNT; at++) {                             \
        theirs[at] = (T) (random);                                   \
        ours[at] = (T) (random);                                     \
    }                                                                \
    swap(PTL_SWAP, datatype, 0, theirs, ours, sizeof theirs);        \
    CHECK(memcmp(target, ours, sizeof ours) == 0);                   \
    SWAPS(T, datatype, PTL_CSWAP, c == a ? b : a);                   \
    SWAPS(T, datatype, PTL_CSWAP_NE, c != a ? b : a)

/* For those that have an order. */
#define IN_ORDER(T, datatype)                                        \
    BECOMES(T, datatype, PTL_MIN, a < b ? a : b);                    \
    BECOMES(T, datatype, PTL_MAX, a > b ? a : b);                    \
    SWAPS(T, datatype, PTL_CSWAP_LE, c <= a ? b : a);                \
    SWAPS(T, datatype, PTL_CSWAP_LT, c < a ? b : a);                 \
    SWAPS(T, datatype, PTL_CSWAP_GE, c >= a ? b : a);                \
    SWAPS(T, datatype, PTL_CSWAP_GT, c > a ? b : a)

#define INTEGERS(T, datatype)                                        \
    do {                                                             \
        NUMBERS(T, datatype, noise() % 4 ? noise() : 0);             \
        IN_ORDER(T, datatype);                                       \
        BECOMES(T, datatype, PTL_SUM, (uint64_t) a + (uint64_t) b);  \
        BECOMES(T, datatype, PTL_PROD, (uint64_t) a * (uint64_t) b); \
        BECOMES(T, datatype, PTL_LOR, a || b);                       \
        BECOMES(T, datatype, PTL_LAND, a && b);                      \
        BECOMES(T, datatype, PTL_LXOR, !a != !b);                    \
        BECOMES(T, datatype, PTL_BOR, a | b);                        \
        BECOMES(T, datatype, PTL_BAND, a & b);                       \
        BECOMES(T, datatype, PTL_BXOR, a ^ b);                       \
        SWAPS(T, datatype, PTL_MSWAP, (b & c) | (a & ~c));           \
    } while (0)

static const int OF_BITS[] = {PTL_LOR, PTL_LAND, PTL_LXOR, PTL_BOR, PTL_BAND, PTL_BXOR, PTL_MSWAP};
static const int OF_ORDER[] = {PTL_MIN, PTL_MAX, PTL_CSWAP_LE, PTL_CSWAP_LT, PTL_CSWAP_GE, PTL_CSWAP_GT};

#define REFUSES(operators, datatype)                                              \
    for (unsigned int at = 0; at < sizeof operators / sizeof operators[0]; at++) \
        refuses(operators[at], datatype)

#define SUMS(T, datatype, random)                                    \
    NUMBERS(T, datatype, random);                                    \
    BECOMES(T, datatype, PTL_SUM, a + b);                            \
    BECOMES(T, datatype, PTL_PROD, a * b);                           \
    REFUSES(OF_BITS, datatype)

#define REALS(T, datatype)                                           \
    do {                                                             \
        SUMS(T, datatype, quarters() / 4.0L);                        \
        IN_ORDER(T, datatype);                                       \
    } while (0)

#define COMPLEX(T, datatype)                                         \
    do {                                                             \
        SUMS(T, datatype, quarters() / 4.0L + quarters() / 4.0L * I); \
        REFUSES(OF_ORDER, datatype);                                 \
    } while (0)

static void all(void)
{
    INTEGERS(int8_t, PTL_INT8_T);
    INTEGERS(uint8_t, PTL_UINT8_T);
    INTEGERS(int16_t, PTL_INT16_T);
    INTEGERS(uint16_t, PTL_UINT16_T);
    INTEGERS(int32_t, PTL_INT32_T);
    INTEGERS(uint32_t, PTL_UINT32_T);
    INTEGERS(int64_t, PTL_INT64_T);
    INTEGERS(uint64_t, PTL_UINT64_T);
    REALS(float, PTL_FLOAT);
    REALS(double, PTL_DOUBLE);
    REALS(long double, PTL_LONG_DOUBLE);
    COMPLEX(float complex, PTL_FLOAT_COMPLEX);
    COMPLEX(double complex, PTL_DOUBLE_COMPLEX);
    COMPLEX(long double complex, PTL_LONG_DOUBLE_COMPLEX);
}

int main(void)
{
    ptl_handle_ni_t ni;
    ptl_handle_me_t me;
    ptl_me_t entry;
    alarm(PATIENCE);
    OK(PtlInit());
    OK(PtlNIInit(PTL_IFACE_DEFAULT, PTL_NI_MATCHING | PTL_NI_PHYSICAL, PTL_PID_ANY, 0, 0, &ni));
    OK(PtlGetPhysId(ni, &self));
    OK(PtlEQAlloc(ni, 16, &eq));
    OK(PtlPTAlloc(ni, 0, eq, PTL_PT_ANY, &pt));
    ptl_md_t all_of_it = {origin, SIZE, PTL_MD_EVENT_SEND_DISABLE, eq, PTL_CT_NONE};
    OK(PtlMDBind(ni, &all_of_it, &md));
    memset(&entry, 0, sizeof entry);
    entry.start = target;
    entry.length = SIZE;
    entry.ct_handle = PTL_CT_NONE;
    entry.uid = PTL_UID_ANY;
    entry.options = PTL_ME_OP_PUT | PTL_ME_OP_GET | PTL_ME_EVENT_LINK_DISABLE | PTL_ME_EVENT_COMM_DISABLE;
    entry.match_id.phys.nid = PTL_NID_ANY;
    entry.match_id.phys.pid = PTL_PID_ANY;
    entry.match_bits = KEY;
    OK(PtlMEAppend(ni, pt, &entry, PTL_PRIORITY_LIST, 0, &me));
    for (int round = 0; round < ROUNDS; round++)
        all();
    OK(PtlNIFini(ni));
    PtlFini();
    puts("ok");
    return 0;
}
