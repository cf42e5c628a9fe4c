/* Several threads of each of two ranks, each with a partner of its own on the other rank, as in `ripstop perf threads`.
 *
 *   threads [--threads 1,2,4] [--seconds 0.5]
 *
 * Each thread exchanges messages of 8 bytes with its partner for so long: one there and back (`ping-pong`), or windows of 64
 * that are answered by 8 bytes (`rate`). The threads of a rank use one communicator, with a tag each, or have one each. All
 * messages are checked. The first thread is the one that called `MPI_Init_thread`. A tenth of the time passes before it counts.
 *
 * Figures are of all threads together, from the first start to the last end: with more threads than cores, the median of a
 * message says nothing. */
#include <mpi.h>
#include <pthread.h>

#include "common.h"

enum { WINDOW = 64, THREADS_MAX = 64, TAG = 1 };

#define LAST ((uint64_t)1 << 47)

/* One thread, and what it got done. */
struct lane {
    MPI_Comm comm;
    int me;
    int other;
    int number;
    int rate;
    double time_us;
    pthread_barrier_t *all_are_there;
    pthread_t thread;
    double began;
    double ended;
    long messages;
};

/* ---- messages: the number of the thread, a bit in the last one, and the number of the message ---- */

static uint64_t word(const struct lane *lane, long number, int last)
{
    return (uint64_t)lane->number << 48 | (last ? LAST : 0) | (uint64_t)number;
}

/* Returns whether it is the last one. */
static int check(const struct lane *lane, uint64_t got, long number)
{
    if ((got & ~LAST) != word(lane, number, 0)) {
        fprintf(stderr, "thread %d of rank %d received %llx in place of message %ld\n", lane->number, lane->me,
                (unsigned long long)got, number);
        MPI_Abort(MPI_COMM_WORLD, 3);
    }
    return (got & LAST) != 0;
}

static void send_one(struct lane *lane, long number, int last)
{
    uint64_t out = word(lane, number, last);
    MPI_Send(&out, 1, MPI_UINT64_T, lane->other, TAG + lane->number, lane->comm);
}

static int recv_one(struct lane *lane, long number)
{
    uint64_t in = 0;
    MPI_Recv(&in, 1, MPI_UINT64_T, lane->other, TAG + lane->number, lane->comm, MPI_STATUS_IGNORE);
    return check(lane, in, number);
}

/* ---- patterns ---- */

static void ping_pong(struct lane *lane, double until)
{
    int last = 0;
    for (long trip = 0; !last; trip++) {
        if (lane->me == 0) {
            last = now_us() >= until;
            send_one(lane, trip, last);
            recv_one(lane, trip);
        } else {
            last = recv_one(lane, trip);
            send_one(lane, trip, last);
        }
        lane->messages += 2;
    }
}

static void windows(struct lane *lane, double until)
{
    uint64_t block[WINDOW];
    MPI_Request request[WINDOW];
    int last = 0, tag = TAG + lane->number;
    for (long nth = 0; !last; nth++) {
        long first = nth * WINDOW;
        if (lane->me == 0) {
            last = now_us() >= until;
            for (int i = 0; i < WINDOW; i++) {
                block[i] = word(lane, first + i, last);
                MPI_Isend(&block[i], 1, MPI_UINT64_T, lane->other, tag, lane->comm, &request[i]);
            }
            MPI_Waitall(WINDOW, request, MPI_STATUSES_IGNORE);
            recv_one(lane, nth);
        } else {
            for (int i = 0; i < WINDOW; i++)
                MPI_Irecv(&block[i], 1, MPI_UINT64_T, lane->other, tag, lane->comm, &request[i]);
            MPI_Waitall(WINDOW, request, MPI_STATUSES_IGNORE);
            for (int i = 0; i < WINDOW; i++)
                last = check(lane, block[i], first + i);
            send_one(lane, nth, last);
        }
        lane->messages += WINDOW;
    }
}

/* ---- threads ---- */

static void *work(void *of)
{
    struct lane *lane = of;
    pthread_barrier_wait(lane->all_are_there);
    lane->began = now_us();
    if (lane->rate)
        windows(lane, lane->began + lane->time_us);
    else
        ping_pong(lane, lane->began + lane->time_us);
    lane->ended = now_us();
    return NULL;
}

static void exchange(struct lane *lane, int threads, double time_us)
{
    pthread_barrier_t all_are_there;
    pthread_barrier_init(&all_are_there, NULL, (unsigned)threads);
    MPI_Barrier(MPI_COMM_WORLD);
    for (int i = 0; i < threads; i++) {
        lane[i].all_are_there = &all_are_there;
        lane[i].messages = 0;
        lane[i].time_us = time_us;
        if (i > 0 && pthread_create(&lane[i].thread, NULL, work, &lane[i]) != 0)
            die("the system makes no further thread", "see --threads");
    }
    work(&lane[0]);
    for (int i = 1; i < threads; i++)
        pthread_join(lane[i].thread, NULL);
    pthread_barrier_destroy(&all_are_there);
}

static void print(const struct lane *lane, int threads, const char *comms)
{
    double began = lane[0].began, ended = lane[0].ended;
    long sum = 0, least = lane[0].messages;
    for (int i = 0; i < threads; i++) {
        began = lane[i].began < began ? lane[i].began : began;
        ended = lane[i].ended > ended ? lane[i].ended : ended;
        least = lane[i].messages < least ? lane[i].messages : least;
        sum += lane[i].messages;
    }
    double mean = (double)sum / threads;
    printf("{\"program\":\"threads\",\"peer\":\"%s\",\"pattern\":\"%s\",\"comms\":\"%s\",\"threads\":%d,\"size\":8,"
           "\"million_per_s\":%.6f,\"mean_us\":%.4f,\"least_share\":%.4f,\"messages\":%ld}\n",
           PEER, lane->rate ? "rate" : "ping-pong", comms, threads, (double)sum / (ended - began),
           (ended - began) / mean, (double)least / mean, sum);
    fflush(stdout);
}

static void measure(struct lane *lane, int threads, int rate, int each, double time_us)
{
    for (int i = 0; i < threads; i++) {
        lane[i].rate = rate;
        lane[i].comm = MPI_COMM_WORLD;
        if (each)
            MPI_Comm_dup(MPI_COMM_WORLD, &lane[i].comm);
    }
    exchange(lane, threads, time_us / 10);
    exchange(lane, threads, time_us);
    if (lane->me == 0)
        print(lane, threads, each ? "each" : "one");
    for (int i = 0; i < threads && each; i++)
        MPI_Comm_free(&lane[i].comm);
}

int main(int argc, char **argv)
{
    int level, me, ranks;
    MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        die("threads needs 2 ranks; start it with", "mpiexec -n 2");
    if (level < MPI_THREAD_MULTIPLE)
        die("this library was built without", "MPI_THREAD_MULTIPLE");

    const char *text = option(argc, argv, "--seconds", "0.5");
    char *end;
    double seconds = strtod(text, &end);
    if (*end || end == text || !(seconds > 0))
        die("--seconds takes a number above 0, not", text);
    long list[NUMBERS_MAX];
    int len = numbers(option(argc, argv, "--threads", "1,2,4"), list);
    struct lane lane[THREADS_MAX] = {0};
    for (int i = 0; i < THREADS_MAX; i++)
        lane[i].me = me, lane[i].other = 1 - me, lane[i].number = i;
    for (int i = 0; i < len; i++)
        if (list[i] < 1 || list[i] > THREADS_MAX)
            die("--threads takes numbers from 1 to 64, not", option(argc, argv, "--threads", ""));
    for (int rate = 0; rate < 2; rate++)
        for (int each = 0; each < 2; each++)
            for (int i = 0; i < len; i++)
                measure(lane, (int)list[i], rate, each, seconds * 1e6);
    MPI_Finalize();
    return 0;
}
