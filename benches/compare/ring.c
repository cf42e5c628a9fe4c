/* Any number of ranks, also more than cores: one step of a ring, one trip of a token, one barrier.
 *
 *   ring [--seconds S] [--iters N]
 *
 * `ring`    every rank sends 8 bytes to the next rank and receives 8 from the one before, at the same time.
 * `token`   8 bytes go once round all ranks; the figure is the whole trip divided by the number of ranks.
 * `barrier` one barrier.
 *
 * Without `--iters` ten operations are tried first and the number is chosen to take about S seconds (default 1), between
 * 10 and 100 000: libraries that spin need tens of milliseconds for one barrier when ranks share cores. The samples are
 * those of rank 0. */
#include <mpi.h>

#include "common.h"

struct ring {
    int me;
    int ranks;
    int next;
    int before;
};

static void step(const struct ring *ring)
{
    int64_t out = ring->me, in = -1;
    MPI_Sendrecv(&out, 1, MPI_INT64_T, ring->next, 1, &in, 1, MPI_INT64_T, ring->before, 1, MPI_COMM_WORLD,
                 MPI_STATUS_IGNORE);
    if (in != ring->before)
        die("a ring message came from the wrong rank", "this is a bug of the peer or of this program");
}

static void token(const struct ring *ring)
{
    int64_t held = 0;
    if (ring->me == 0)
        MPI_Send(&held, 1, MPI_INT64_T, ring->next, 2, MPI_COMM_WORLD);
    MPI_Recv(&held, 1, MPI_INT64_T, ring->before, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    if (ring->me != 0)
        MPI_Send(&held, 1, MPI_INT64_T, ring->next, 2, MPI_COMM_WORLD);
}

static void barrier(const struct ring *ring)
{
    (void)ring;
    MPI_Barrier(MPI_COMM_WORLD);
}

static double timed(const struct ring *ring, void (*operation)(const struct ring *), struct samples *s, int iters)
{
    double start = now_us(), last = start;
    for (int i = 0; i < iters; i++) {
        operation(ring);
        double now = now_us();
        samples_push(s, now - last);
        last = now;
    }
    return (last - start) / iters;
}

static void measure(const struct ring *ring, const char *program, void (*operation)(const struct ring *), int iters,
                    double seconds)
{
    enum { ITERS_MAX = 100000 };
    struct samples s = samples_new(ITERS_MAX);
    double each = timed(ring, operation, &s, 10);
    if (!iters) {
        double fit = seconds * 1e6 / (each > 0.01 ? each : 0.01);
        iters = fit < 10 ? 10 : fit > ITERS_MAX ? ITERS_MAX : (int)fit;
    }
    MPI_Bcast(&iters, 1, MPI_INT, 0, MPI_COMM_WORLD);
    s.len = 0;
    each = timed(ring, operation, &s, iters);
    double share = operation == token ? 1.0 / ring->ranks : 1.0;
    if (ring->me == 0) {
        samples_sort(&s);
        printf("{\"program\":\"%s\",\"peer\":\"%s\",\"ranks\":%d,\"size\":8,\"median_us\":%.4f,\"mean_us\":%.4f,"
               "\"min_us\":%.4f,\"p99_us\":%.4f,\"iters\":%d}\n",
               program, PEER, ring->ranks, share * samples_at(&s, 0.5), share * each, share * s.value[0],
               share * samples_at(&s, 0.99), iters);
        fflush(stdout);
    }
    free(s.value);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    struct ring ring;
    MPI_Comm_rank(MPI_COMM_WORLD, &ring.me);
    MPI_Comm_size(MPI_COMM_WORLD, &ring.ranks);
    ring.next = (ring.me + 1) % ring.ranks;
    ring.before = (ring.me + ring.ranks - 1) % ring.ranks;
    int iters = (int)option_number(argc, argv, "--iters", 0);
    double seconds = (double)option_number(argc, argv, "--seconds", 1);
    measure(&ring, "ring", step, iters, seconds);
    measure(&ring, "token", token, iters, seconds);
    measure(&ring, "barrier", barrier, iters, seconds);
    MPI_Finalize();
    return 0;
}
