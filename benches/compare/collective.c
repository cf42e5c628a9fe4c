/* Collectives: how long a call takes, and how much of that a computation hides. The same loops as `ripstop perf collective`.
 *
 *   collective NAME ... [--size 8,65536] [--iters N] [--overlap yes [--tests T]]
 *
 * NAME is barrier, bcast, all_reduce or all_to_all. `--size` is the buffer in bytes, for all_to_all the block for each rank;
 * elements are doubles. Times are averaged over calls and ranks. Blocking: calls one after the other. With `--overlap yes`,
 * non-blocking calls with a barrier before each: `pure_us` alone, `compute_us` a computation alone that takes as long,
 * `overall_us` both at once; `osu_overlap` and `imb_overlap` in percent are made of these. With `--tests T` the computation is in
 * T + 1 parts with an MPI_Test between each two; what these take is in `overall_us`, not in `compute_us`. */
#include <mpi.h>

#include "common.h"

enum name { BARRIER, BCAST, ALL_REDUCE, ALL_TO_ALL, NAMES };

static const char *const names[NAMES] = {"barrier", "bcast", "all_reduce", "all_to_all"};

/* Tests in a computation. */
static long tests = 0;

struct bench {
    enum name name;
    int ranks;
    int me;
    int count;
    long size;
    double *send;
    double *recv;
};

static void call(const struct bench *b)
{
    switch (b->name) {
    case BARRIER:
        MPI_Barrier(MPI_COMM_WORLD);
        break;
    case BCAST:
        MPI_Bcast(b->recv, b->count, MPI_DOUBLE, 0, MPI_COMM_WORLD);
        break;
    case ALL_REDUCE:
        MPI_Allreduce(MPI_IN_PLACE, b->recv, b->count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
        break;
    default:
        MPI_Alltoall(b->send, b->count, MPI_DOUBLE, b->recv, b->count, MPI_DOUBLE, MPI_COMM_WORLD);
    }
}

static void begin(const struct bench *b, MPI_Request *request)
{
    switch (b->name) {
    case BARRIER:
        MPI_Ibarrier(MPI_COMM_WORLD, request);
        break;
    case BCAST:
        MPI_Ibcast(b->recv, b->count, MPI_DOUBLE, 0, MPI_COMM_WORLD, request);
        break;
    case ALL_REDUCE:
        MPI_Iallreduce(MPI_IN_PLACE, b->recv, b->count, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD, request);
        break;
    default:
        MPI_Ialltoall(b->send, b->count, MPI_DOUBLE, b->recv, b->count, MPI_DOUBLE, MPI_COMM_WORLD, request);
    }
}

/* The computation of `ripstop perf collective`: registers only. Returns microseconds. */
static double work(long rounds)
{
    double start = now_us();
    volatile double x = 1.0;
    for (long i = 0; i < rounds; i++)
        x = x * 1.000001 + 1e-9;
    return now_us() - start;
}

static double mean(const struct bench *b, double mine)
{
    double sum = 0;
    MPI_Allreduce(&mine, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
    return sum / b->ranks;
}

/* Calls do not count for this long: a process that has just started is slower, however many calls it makes. */
#define WARM_US 50000.0

/* Returns true while there is more to warm up, by the clock of rank 0. */
static int is_cold(double since)
{
    int cold = now_us() - since < WARM_US;
    MPI_Bcast(&cold, 1, MPI_INT, 0, MPI_COMM_WORLD);
    return cold;
}

static void blocking(const struct bench *b, long iters)
{
    double begun = now_us();
    do {
        for (long i = 0; i < iters / 10 + 3; i++)
            call(b);
    } while (is_cold(begun));
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_us();
    for (long i = 0; i < iters; i++)
        call(b);
    double each = mean(b, (now_us() - start) / (double)iters);
    if (b->me == 0)
        printf("{\"program\":\"collective\",\"peer\":\"" PEER
               "\",\"collective\":\"%s\",\"ranks\":%d,\"size\":%ld,\"mean_us\":%.6f,\"iters\":%ld}\n",
               names[b->name], b->ranks, b->size, each, iters);
}

/* The computation in parts with a test between each two. Returns microseconds of the parts. */
static double work_and_test(long rounds, MPI_Request *request)
{
    double computed = 0;
    for (long nth = 0; nth <= tests; nth++) {
        computed += work(rounds / (tests + 1) + (nth < rounds % (tests + 1)));
        int over;
        if (nth < tests)
            MPI_Test(request, &over, MPI_STATUS_IGNORE);
    }
    return computed;
}

/* Time of a call with a computation, and of the computation in it. */
static void loops(const struct bench *b, long iters, long rounds, double *overall, double *computed)
{
    double all = 0, computing = 0;
    for (long i = 0; i < iters; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        MPI_Request request;
        double start = now_us();
        begin(b, &request);
        computing += rounds > 0 ? work_and_test(rounds, &request) : 0;
        MPI_Wait(&request, MPI_STATUS_IGNORE);
        all += now_us() - start;
    }
    *overall = mean(b, all / (double)iters);
    *computed = mean(b, computing / (double)iters);
}

static int by_length(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the median of nine, as in `ripstop perf collective`, so that a disturbed one does not count. */
static double alone(long rounds)
{
    double times[9];
    for (int i = 0; i < 9; i++)
        times[i] = work(rounds);
    qsort(times, 9, sizeof times[0], by_length);
    return times[4];
}

static void overlapping(const struct bench *b, long iters)
{
    double pure, none, overall, computed, warm;
    double begun = now_us();
    do
        loops(b, iters / 10 + 3, 0, &warm, &none);
    while (is_cold(begun));
    loops(b, iters, 0, &pure, &none);
    double trial = work(1000000);
    for (int i = 0; i < 4; i++) {
        double again = work(1000000);
        trial = again < trial ? again : trial;
    }
    long rounds = (long)(pure / trial * 1e6);
    rounds = rounds > 0 ? rounds : 1;
    double compute = mean(b, alone(rounds));
    loops(b, iters, rounds, &overall, &computed);
    double osu = 100 - (overall - compute) / pure * 100;
    double imb = (pure + compute - overall) / (pure < compute ? pure : compute);
    imb = imb < 0 ? 0 : imb > 1 ? 1 : imb;
    if (b->me == 0)
        printf("{\"program\":\"collective\",\"peer\":\"" PEER
               "\",\"collective\":\"%s\",\"ranks\":%d,\"size\":%ld,\"pure_us\":%.6f,\"compute_us\":%.6f,"
               "\"overall_us\":%.6f,\"osu_overlap\":%.6f,\"imb_overlap\":%.6f,\"availability\":%.6f,\"tests\":%ld,"
               "\"iters\":%ld}\n",
               names[b->name], b->ranks, b->size, pure, compute, overall, osu > 0 ? osu : 0, 100 * imb,
               100 * compute / computed, tests, iters);
}

/* The same as in `ripstop perf collective`. */
static long iterations(long size, int ranks)
{
    long iters = size <= 8192 ? 20000 : size <= 131072 ? 4000 : size <= 1048576 ? 600 : 150;
    iters /= ranks > 2 ? 10 : 1;
    return iters > 20 ? iters : 20;
}

static void measure(struct bench *b, const char *asked, long iters, int overlap)
{
    size_t bytes = (size_t)b->count * sizeof(double) * (b->name == ALL_TO_ALL ? (size_t)b->ranks : 1);
    b->send = room(bytes);
    b->recv = room(bytes);
    for (size_t i = 0; i < bytes / sizeof(double); i++)
        b->send[i] = b->recv[i] = 1.0;
    long calls = strcmp(asked, "") ? iters : iterations(b->size, b->ranks);
    if (overlap)
        overlapping(b, calls);
    else
        blocking(b, calls);
    free(b->send);
    free(b->recv);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    struct bench b = {0};
    MPI_Comm_rank(MPI_COMM_WORLD, &b.me);
    MPI_Comm_size(MPI_COMM_WORLD, &b.ranks);
    long sizes[NUMBERS_MAX];
    int len = numbers(option(argc, argv, "--size", "8,65536,1048576"), sizes);
    const char *asked = option(argc, argv, "--iters", "");
    long iters = option_number(argc, argv, "--iters", 1);
    int overlap = strcmp(option(argc, argv, "--overlap", "no"), "yes") == 0;
    tests = option_number(argc, argv, "--tests", 0);
    if (iters < 1)
        die("--iters", "at least 1");
    if (tests < 0)
        die("--tests", "at least 0");
    for (int i = 1; i < argc && argv[i][0] != '-'; i++) {
        int name = 0;
        while (name < NAMES && strcmp(argv[i], names[name]))
            name++;
        if (name == NAMES)
            die("not one of barrier, bcast, all_reduce, all_to_all", argv[i]);
        b.name = (enum name)name;
        for (int s = 0; s < (name == BARRIER ? 1 : len); s++) {
            b.size = name == BARRIER ? 0 : sizes[s];
            b.count = (int)((b.size + 7) / 8);
            measure(&b, asked, iters, overlap);
        }
    }
    MPI_Finalize();
    return 0;
}
