/* Two ranks, one pair: latency, bandwidth, bibandwidth, rate, matching.
 *
 *   p2p latency     [--size 8,4096,...] [--iters N]   blocking ping-pong; one way = half a round trip
 *   p2p bandwidth   [--size ...] [--window W] [--iters N] [--receive-buffers each|one]
 *   p2p bibandwidth [--size ...] [--window W] [--iters N] [--receive-buffers each|one]
 *   p2p rate        [--iters N]                       bandwidth with messages of 8 bytes, in messages
 *   p2p matching    [--depth 0,10000] [--iters N]     8-byte ping-pong behind messages that do not match
 *
 * A latency sample is one round trip, timed by itself, so the percentiles are exact; the clock costs about 17 ns of it.
 * A bandwidth sample is one window of W (at most 64, the default) non-blocking sends from one buffer, answered by 4 bytes
 * when all have come.
 * Each receive of a window has its own buffer: receives into one shared buffer (`one`), though customary in benchmarks,
 * are not something a correct program may do. */
#include <mpi.h>

#include "common.h"

enum { WINDOW_MAX = 64, TAG = 1, TAG_ACK = 2, TAG_OTHER = 1000 };

struct pair {
    int me;
    int other;
};

static void print_times(const char *program, const char *extra, long size, struct samples *s)
{
    samples_sort(s);
    printf("{\"program\":\"%s\",\"peer\":\"%s\",%s\"size\":%ld,\"median_us\":%.4f,\"min_us\":%.4f,\"p99_us\":%.4f,"
           "\"iters\":%d}\n",
           program, PEER, extra, size, samples_at(s, 0.5), s->value[0], samples_at(s, 0.99), s->len);
    fflush(stdout);
}

/* ---- latency ---- */

static void ping_pong(struct pair pair, char *out, char *in, long size, long iters, struct samples *s)
{
    int n = (int)size;
    for (long i = 0; i < iters; i++) {
        if (pair.me == 0) {
            double start = now_us();
            MPI_Send(out, n, MPI_CHAR, pair.other, TAG, MPI_COMM_WORLD);
            MPI_Recv(in, n, MPI_CHAR, pair.other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            samples_push(s, (now_us() - start) / 2);
        } else {
            MPI_Recv(in, n, MPI_CHAR, pair.other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            MPI_Send(out, n, MPI_CHAR, pair.other, TAG, MPI_COMM_WORLD);
        }
    }
}

static void latency(struct pair pair, long size, long iters)
{
    iters = iters ? iters : message_iters(size);
    char *out = room((size_t)size), *in = room((size_t)size);
    struct samples s = samples_new((int)iters);
    ping_pong(pair, out, in, size, iters / 10 + 10, &s);
    s.len = 0;
    MPI_Barrier(MPI_COMM_WORLD);
    ping_pong(pair, out, in, size, iters, &s);
    if (pair.me == 0)
        print_times("latency", "", size, &s);
    free(out), free(in), free(s.value);
}

/* ---- bandwidth, bibandwidth, rate ---- */

struct stream {
    long size;
    int window;
    int both_ways;
    char *out;
    char *in[WINDOW_MAX];
    MPI_Request request[2 * WINDOW_MAX];
};

static void window_receive(struct pair pair, struct stream *st, MPI_Request *into)
{
    for (int i = 0; i < st->window; i++)
        MPI_Irecv(st->in[i], (int)st->size, MPI_CHAR, pair.other, TAG, MPI_COMM_WORLD, &into[i]);
}

static void window_send(struct pair pair, struct stream *st, MPI_Request *into)
{
    for (int i = 0; i < st->window; i++)
        MPI_Isend(st->out, (int)st->size, MPI_CHAR, pair.other, TAG, MPI_COMM_WORLD, &into[i]);
}

static void window(struct pair pair, struct stream *st)
{
    int receives = st->both_ways || pair.me == 1, sends = st->both_ways || pair.me == 0;
    int pending = 0;
    if (receives) {
        window_receive(pair, st, st->request);
        pending = st->window;
    }
    if (sends) {
        window_send(pair, st, st->request + pending);
        pending += st->window;
    }
    MPI_Waitall(pending, st->request, MPI_STATUSES_IGNORE);
    int ack = 1;
    if (pair.me == 0)
        MPI_Recv(&ack, 1, MPI_INT, pair.other, TAG_ACK, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    else
        MPI_Send(&ack, 1, MPI_INT, pair.other, TAG_ACK, MPI_COMM_WORLD);
}

static void print_stream(const char *program, struct stream *st, struct samples *s)
{
    samples_sort(s);
    double per_window = (double)st->window * (st->both_ways ? 2 : 1);
    double median = samples_at(s, 0.5), best = s->value[0], slow = samples_at(s, 0.99);
    printf("{\"program\":\"%s\",\"peer\":\"%s\",\"size\":%ld,", program, PEER, st->size);
    if (strcmp(program, "rate") == 0)
        printf("\"million_per_s\":%.4f,\"best_million_per_s\":%.4f,", per_window / median, per_window / best);
    else
        printf("\"mb_per_s\":%.1f,\"best_mb_per_s\":%.1f,", per_window * (double)st->size / median,
               per_window * (double)st->size / best);
    printf("\"median_us\":%.4f,\"p99_us\":%.4f,\"window\":%d,\"iters\":%d}\n", median, slow, st->window, s->len);
    fflush(stdout);
}

static void stream(struct pair pair, const char *program, long size, long iters, int window_len, int one_buffer)
{
    iters = iters ? iters : message_iters(size) / 8;
    struct stream st = {.size = size, .window = window_len, .out = room((size_t)size)};
    st.both_ways = strcmp(program, "bibandwidth") == 0;
    size_t stride = ((size_t)size + 63) & ~(size_t)63;
    char *in = room(stride * (one_buffer ? 1 : (size_t)window_len));
    for (int i = 0; i < window_len; i++)
        st.in[i] = in + (one_buffer ? 0 : stride * (size_t)i);
    struct samples s = samples_new((int)iters);
    for (long i = -(iters / 10 + 2); i < iters; i++) {
        double start = now_us();
        window(pair, &st);
        if (i >= 0)
            samples_push(&s, now_us() - start);
    }
    if (pair.me == 0)
        print_stream(program, &st, &s);
    free(st.out), free(in), free(s.value);
}

/* ---- matching ---- */

/* The ping-pong runs while both ranks hold `depth` receives, or `depth` arrived messages, of other tags from the same
 * peer; all of them are older than any message of the ping-pong. */
static void matching(struct pair pair, const char *kind, long depth, long iters)
{
    int posted = strcmp(kind, "posted") == 0;
    int64_t *far = room(sizeof(int64_t) * (size_t)(2 * depth + 1));
    MPI_Request *request = room(sizeof(MPI_Request) * (size_t)(depth + 1));
    for (long i = 0; i < depth; i++) {
        int tag = TAG_OTHER + (int)i;
        if (posted)
            MPI_Irecv(&far[i], 1, MPI_INT64_T, pair.other, tag, MPI_COMM_WORLD, &request[i]);
        else
            MPI_Isend(&far[i], 1, MPI_INT64_T, pair.other, tag, MPI_COMM_WORLD, &request[i]);
    }
    MPI_Barrier(MPI_COMM_WORLD);

    iters = iters ? iters : 1000;
    char out[8] = {1}, in[8];
    struct samples s = samples_new((int)iters);
    ping_pong(pair, out, in, 8, iters / 10 + 1, &s);
    s.len = 0;
    ping_pong(pair, out, in, 8, iters, &s);
    if (pair.me == 0) {
        char extra[64];
        snprintf(extra, sizeof extra, "\"kind\":\"%s\",\"depth\":%ld,", kind, depth);
        print_times("matching", extra, 8, &s);
    }

    for (long i = 0; i < depth; i++) {
        int tag = TAG_OTHER + (int)i;
        if (posted)
            MPI_Send(&far[depth + i], 1, MPI_INT64_T, pair.other, tag, MPI_COMM_WORLD);
        else
            MPI_Recv(&far[depth + i], 1, MPI_INT64_T, pair.other, tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    }
    MPI_Waitall((int)depth, request, MPI_STATUSES_IGNORE);
    free(far), free(request), free(s.value);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    struct pair pair;
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &pair.me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        die("p2p needs 2 ranks; start it with", "mpiexec -n 2");
    pair.other = 1 - pair.me;

    const char *program = argc > 1 ? argv[1] : "latency";
    long iters = option_number(argc, argv, "--iters", 0), list[NUMBERS_MAX];
    int one_buffer = strcmp(option(argc, argv, "--receive-buffers", "each"), "one") == 0;
    long window_len = option_number(argc, argv, "--window", WINDOW_MAX);
    if (window_len < 1 || window_len > WINDOW_MAX)
        die("--window takes 1 to 64, not", option(argc, argv, "--window", "64"));
    if (strcmp(program, "matching") == 0) {
        int len = numbers(option(argc, argv, "--depth", "0,10000"), list);
        for (int i = 0; i < len; i++) {
            matching(pair, "posted", list[i], iters);
            matching(pair, "unexpected", list[i], iters);
        }
    } else if (strcmp(program, "latency") == 0) {
        int len = numbers(option(argc, argv, "--size", "8,4096,65536,1048576"), list);
        for (int i = 0; i < len; i++)
            latency(pair, list[i], iters);
    } else if (strcmp(program, "bandwidth") == 0 || strcmp(program, "bibandwidth") == 0) {
        int len = numbers(option(argc, argv, "--size", "8192,65536,262144,1048576"), list);
        for (int i = 0; i < len; i++)
            stream(pair, program, list[i], iters, (int)window_len, one_buffer);
    } else if (strcmp(program, "rate") == 0) {
        stream(pair, program, 8, iters, WINDOW_MAX, one_buffer);
    } else {
        die("latency, bandwidth, bibandwidth, rate or matching, but not", program);
    }
    MPI_Finalize();
    return 0;
}
