/* Two ranks, one window: what an epoch with one operation takes, and what streams of operations move.
 *
 *   rma pscw       [--size 8,4096,...] [--iters N]   post, start, put, complete, wait; both ranks, towards each other
 *   rma fence      [--size ...] [--iters N]          put and fence; both ranks
 *   rma lock-flush [--size ...] [--iters N]          put and flush by rank 0 under a shared lock; rank 1 waits in a barrier
 *   rma get-flush  [--size ...] [--iters N]          the same with a get
 *   rma accumulate [--size ...] [--iters N]          the same with a sum of 64-bit integers
 *   rma fetch-add  [--iters N]                       the same with one number, which comes back
 *   rma cas        [--iters N]                       the same with a compare and swap
 *   rma put-stream [--size ...] [--iters N]          64 puts, each with a buffer and a place of its own, and a flush
 *   rma get-stream [--size ...] [--iters N]          the same with gets
 *
 * The window is MPI_Win_allocate's, so that the library may share it. A sample is one epoch, or one operation with its flush,
 * timed by itself; the clock costs about 17 ns of it. */
#include <mpi.h>

#include "common.h"

enum { WINDOW = 64 };

struct side {
    int me;
    int other;
    MPI_Win window;
    MPI_Group neighbor;
    char *block; /* the buffers of puts or gets: one, or WINDOW of them */
    long size;
};

/* ---- what is timed ---- */

static void pscw(struct side *side)
{
    MPI_Win_post(side->neighbor, 0, side->window);
    MPI_Win_start(side->neighbor, 0, side->window);
    MPI_Put(side->block, (int)side->size, MPI_CHAR, side->other, 0, (int)side->size, MPI_CHAR, side->window);
    MPI_Win_complete(side->window);
    MPI_Win_wait(side->window);
}

static void fence(struct side *side)
{
    MPI_Put(side->block, (int)side->size, MPI_CHAR, side->other, 0, (int)side->size, MPI_CHAR, side->window);
    MPI_Win_fence(0, side->window);
}

static void lock_flush(struct side *side)
{
    MPI_Put(side->block, (int)side->size, MPI_CHAR, side->other, 0, (int)side->size, MPI_CHAR, side->window);
    MPI_Win_flush(side->other, side->window);
}

static void get_flush(struct side *side)
{
    MPI_Get(side->block, (int)side->size, MPI_CHAR, side->other, 0, (int)side->size, MPI_CHAR, side->window);
    MPI_Win_flush(side->other, side->window);
}

static void accumulate(struct side *side)
{
    int n = (int)(side->size / 8);
    MPI_Accumulate(side->block, n, MPI_UINT64_T, side->other, 0, n, MPI_UINT64_T, MPI_SUM, side->window);
    MPI_Win_flush(side->other, side->window);
}

static void fetch_add(struct side *side)
{
    uint64_t one = 1, old;
    MPI_Fetch_and_op(&one, &old, MPI_UINT64_T, side->other, 0, MPI_SUM, side->window);
    MPI_Win_flush(side->other, side->window);
}

static void cas(struct side *side)
{
    uint64_t expected = 0, new = 1, old;
    MPI_Compare_and_swap(&new, &expected, &old, MPI_UINT64_T, side->other, 0, side->window);
    MPI_Win_flush(side->other, side->window);
}

static void put_stream(struct side *side)
{
    int n = (int)side->size;
    for (long i = 0; i < WINDOW; i++)
        MPI_Put(side->block + i * side->size, n, MPI_CHAR, side->other, i * side->size, n, MPI_CHAR, side->window);
    MPI_Win_flush(side->other, side->window);
}

static void get_stream(struct side *side)
{
    int n = (int)side->size;
    for (long i = 0; i < WINDOW; i++)
        MPI_Get(side->block + i * side->size, n, MPI_CHAR, side->other, i * side->size, n, MPI_CHAR, side->window);
    MPI_Win_flush(side->other, side->window);
}

/* ---- how it is timed ---- */

static const struct way {
    const char *name;
    void (*once)(struct side *);
    int locked; /* rank 0 alone, under a lock */
    int blocks;
} ways[] = {
    {"pscw", pscw, 0, 1},           {"fence", fence, 0, 1},         {"lock-flush", lock_flush, 1, 1},
    {"get-flush", get_flush, 1, 1}, {"accumulate", accumulate, 1, 1}, {"fetch-add", fetch_add, 1, 1},
    {"cas", cas, 1, 1},             {"put-stream", put_stream, 1, WINDOW}, {"get-stream", get_stream, 1, WINDOW},
};

static long default_iters(long size, int blocks)
{
    long iters = size <= 8192 ? 20000 : size <= 131072 ? 4000 : 600;
    return blocks > 1 ? iters / 16 : iters;
}

static void print(const struct way *way, long size, struct samples *s)
{
    samples_sort(s);
    double median = samples_at(s, 0.5);
    printf("{\"program\":\"%s\",\"peer\":\"%s\",\"size\":%ld,\"median_us\":%.4f,\"min_us\":%.4f,\"p99_us\":%.4f,", way->name,
           PEER, size, median, s->value[0], samples_at(s, 0.99));
    printf("\"mb_per_s\":%.1f,\"iters\":%d}\n", (double)way->blocks * (double)size / median, s->len);
    fflush(stdout);
}

static void measure(const struct way *way, struct side *side, long iters)
{
    iters = iters ? iters : default_iters(side->size, way->blocks);
    size_t bytes = (size_t)side->size * (size_t)way->blocks;
    /* Aligned as by malloc, like a vector: a copy into a block that starts with its page is up to twice as fast. */
    if (!(side->block = malloc(bytes)))
        die("no memory for a buffer of this many bytes", "see --size");
    memset(side->block, 1, bytes);
    char *base;
    MPI_Win_allocate((MPI_Aint)bytes, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &side->window);
    memset(base, 0, bytes);
    MPI_Barrier(MPI_COMM_WORLD);
    struct samples s = samples_new((int)iters);
    if (way->locked && side->me == 0)
        MPI_Win_lock(MPI_LOCK_SHARED, side->other, 0, side->window);
    if (way->once == fence)
        MPI_Win_fence(0, side->window);
    for (long i = -(iters / 10 + 10); i < iters && (!way->locked || side->me == 0); i++) {
        double start = now_us();
        way->once(side);
        if (i >= 0)
            samples_push(&s, now_us() - start);
    }
    if (way->locked && side->me == 0)
        MPI_Win_unlock(side->other, side->window);
    MPI_Barrier(MPI_COMM_WORLD);
    if (side->me == 0)
        print(way, side->size, &s);
    MPI_Win_free(&side->window);
    free(side->block), free(s.value);
}

static void measure_named(const char *name, struct side *side, const char *sizes, long iters)
{
    long size[NUMBERS_MAX];
    int len = numbers(sizes, size);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; w++) {
        if (strcmp(name, ways[w].name) != 0)
            continue;
        for (int i = 0; i < len; i++) {
            side->size = size[i];
            measure(&ways[w], side, iters);
        }
        return;
    }
    die("there is no such program", name);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    struct side side = {0};
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &side.me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        die("rma needs 2 ranks; start it with", "mpiexec -n 2");
    side.other = 1 - side.me;
    MPI_Group world;
    MPI_Comm_group(MPI_COMM_WORLD, &world);
    MPI_Group_incl(world, 1, &side.other, &side.neighbor);
    measure_named(argc > 1 ? argv[1] : "", &side, option(argc, argv, "--size", "8"), option_number(argc, argv, "--iters", 0));
    MPI_Group_free(&side.neighbor);
    MPI_Group_free(&world);
    MPI_Finalize();
    return 0;
}
