/* The floor under every latency: one cache line going back and forth between two processes on two cores.
 *
 *   line [--iters N] [--cores 0,1]
 *
 * `one`:   a single counter, both processes write it in turns (the line itself travels both ways).
 * `two`:   each process writes a counter in a line of its own and reads the other's.
 * `slots`: as `two`, but each message takes the next of 64 lines, as the slots of a message ring do.
 * `one` is the raw cache line that targets are measured by; the others show what a choice of layout costs.
 * One way = half a round trip. A sample is 100 round trips, so that the clock does not count. */
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

enum { BATCH = 100, SLOTS = 64 };

struct line {
    _Alignas(64) _Atomic uint64_t count;
};

struct lane {
    struct line *slot;
    uint64_t mask; /* number of slots, a power of two, less one */
};

static void await(struct lane lane, uint64_t trip, uint64_t value)
{
    while (atomic_load_explicit(&lane.slot[trip & lane.mask].count, memory_order_acquire) != value)
        ;
}

static void tell(struct lane lane, uint64_t trip, uint64_t value)
{
    atomic_store_explicit(&lane.slot[trip & lane.mask].count, value, memory_order_release);
}

static void answer(struct lane in, struct lane out, long trips)
{
    for (uint64_t i = 0; i < (uint64_t)trips; i++) {
        await(in, i, 2 * i + 1);
        tell(out, i, 2 * i + 2);
    }
}

static void ask(struct lane out, struct lane in, long trips, struct samples *s)
{
    double start = now_us();
    for (uint64_t i = 0; i < (uint64_t)trips; i++) {
        tell(out, i, 2 * i + 1);
        await(in, i, 2 * i + 2);
        if ((i + 1) % BATCH == 0) {
            double now = now_us();
            samples_push(s, (now - start) / (2 * BATCH));
            start = now;
        }
    }
}

static void measure(const char *kind, const long *core, long batches)
{
    size_t bytes = sizeof(struct line) * 2 * SLOTS;
    struct line *lines = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (lines == MAP_FAILED)
        die("no shared memory for", "a few cache lines");
    uint64_t mask = strcmp(kind, "slots") == 0 ? SLOTS - 1 : 0;
    struct lane ping = {lines, mask}, pong = {strcmp(kind, "one") == 0 ? lines : lines + SLOTS, mask};
    pid_t child = fork();
    if (child < 0)
        die("cannot start", "the second process");
    if (child == 0) {
        pin(core[1]);
        answer(ping, pong, batches * BATCH);
        _exit(0);
    }
    pin(core[0]);
    struct samples s = samples_new((int)batches);
    ask(ping, pong, batches * BATCH, &s);
    waitpid(child, NULL, 0);
    samples_sort(&s);
    printf("{\"program\":\"line\",\"peer\":\"%s\",\"kind\":\"%s\",\"size\":8,\"median_us\":%.4f,\"min_us\":%.4f,"
           "\"p99_us\":%.4f,\"iters\":%d}\n",
           PEER, kind, samples_at(&s, 0.5), s.value[0], samples_at(&s, 0.99), s.len * BATCH);
    fflush(stdout);
    free(s.value);
    munmap(lines, bytes);
}

int main(int argc, char **argv)
{
    long core[NUMBERS_MAX];
    if (numbers(option(argc, argv, "--cores", "0,1"), core) != 2 || core[0] == core[1])
        die("--cores takes two different cores, such as 0,1, not", option(argc, argv, "--cores", "0,1"));
    long batches = option_number(argc, argv, "--iters", 200000) / BATCH;
    measure("one", core, batches > 0 ? batches : 1);
    measure("two", core, batches > 0 ? batches : 1);
    measure("slots", core, batches > 0 ? batches : 1);
    return 0;
}
