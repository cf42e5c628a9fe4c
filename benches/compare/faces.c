/* A face of a cube of doubles, sent from where it lies and received to where it belongs, as in `ripstop perf faces`.
 *
 *   faces [--n 64,256] [--iters N]
 *
 * Each of two ranks has a cube of n cells along each edge, with a layer of ghosts around them, so that no face is contiguous: a z
 * face has rows, a y face has rows that lie planes apart, and an x face has single cells. A datatype made of `MPI_Type_vector`
 * describes it. A sample is one round trip of blocking calls, and half of it is reported.
 *
 * The first and the last cell of each message are its number, which the receiver checks. All ghosts are checked before and
 * after the samples. */
#include <mpi.h>

#include "common.h"

enum { AXES = 3, TAG = 1 };

static const char *const axis_name[AXES] = {"z", "y", "x"};

struct cube {
    int me;
    int other;
    int axis;
    int n;
    long edge; /* with the ghosts */
    double *field;
    MPI_Datatype face;
    long messages;
};

/* The index of a cell of a layer, by its coordinates along the two other axes, the slower one first. */
static long cell(const struct cube *c, long layer, long slow, long fast)
{
    long z = c->axis == 0 ? layer : slow, x = c->axis == 2 ? layer : fast;
    long y = c->axis == 0 ? slow : c->axis == 1 ? layer : fast;
    return (z * c->edge + y) * c->edge + x;
}

static MPI_Datatype face_type(const struct cube *c)
{
    MPI_Datatype face, column;
    int row = (int)c->edge, plane = row * row;
    if (c->axis < 2) {
        MPI_Type_vector(c->n, c->n, c->axis == 0 ? row : plane, MPI_DOUBLE, &face);
    } else {
        MPI_Type_vector(c->n, 1, row, MPI_DOUBLE, &column);
        MPI_Type_create_hvector(c->n, 1, (MPI_Aint)plane * (MPI_Aint)sizeof(double), column, &face);
        MPI_Type_free(&column);
    }
    MPI_Type_commit(&face);
    return face;
}

/* ---- messages ---- */

static void wrong(double got, double expected)
{
    fprintf(stderr, "a ghost is %.1f in place of %.1f\n", got, expected);
    MPI_Abort(MPI_COMM_WORLD, 3);
}

static void send_face(struct cube *c)
{
    c->field[cell(c, 1, 1, 1)] = c->field[cell(c, 1, c->n, c->n)] = (double)c->messages;
    MPI_Send(&c->field[cell(c, 1, 1, 1)], 1, c->face, c->other, TAG, MPI_COMM_WORLD);
}

static void recv_face(struct cube *c)
{
    long layer = c->n + 1;
    double *first = &c->field[cell(c, layer, 1, 1)];
    MPI_Recv(first, 1, c->face, c->other, TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    double last = c->field[cell(c, layer, c->n, c->n)], number = (double)c->messages;
    if (*first != number || last != number)
        wrong(*first != number ? *first : last, number);
}

static void trip(struct cube *c)
{
    for (int leg = 0; leg < 2; leg++, c->messages++)
        if (leg == c->me)
            send_face(c);
        else
            recv_face(c);
}

/* ---- checks ---- */

/* A value that no other cell has, and that the cell has in no other round. */
static double value(int round, int rank, long at)
{
    return (double)(((2L * round + rank) << 32) + at);
}

static void check(struct cube *c, int round)
{
    for (long at = 0; at < c->edge * c->edge * c->edge; at++)
        c->field[at] = value(round, c->me, at);
    trip(c);
    for (long i = 1; i <= c->n; i++)
        for (long j = 1; j <= c->n; j++) {
            int numbered = (i == 1 && j == 1) || (i == c->n && j == c->n);
            double got = c->field[cell(c, c->n + 1, i, j)], sent = value(round, c->other, cell(c, 1, i, j));
            if (!numbered && got != sent)
                wrong(got, sent);
        }
}

/* ---- the measurement ---- */

static void measure(struct cube *c, long iters)
{
    long size = (long)c->n * c->n * (long)sizeof(double);
    iters = iters ? iters : message_iters(size);
    struct samples s = samples_new((int)iters);
    check(c, 0);
    for (long i = -(iters / 10 + 1); i < iters; i++) {
        MPI_Barrier(MPI_COMM_WORLD);
        double start = now_us();
        trip(c);
        if (i >= 0)
            samples_push(&s, (now_us() - start) / 2);
    }
    check(c, 1);
    samples_sort(&s);
    if (c->me == 0) {
        printf("{\"program\":\"faces\",\"peer\":\"%s\",\"n\":%d,\"axis\":\"%s\",\"size\":%ld,\"one_way_us\":%.4f,"
               "\"min_us\":%.4f,\"p99_us\":%.4f,\"iters\":%d}\n",
               PEER, c->n, axis_name[c->axis], size, samples_at(&s, 0.5), s.value[0], samples_at(&s, 0.99), s.len);
        fflush(stdout);
    }
    free(s.value);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    struct cube c = {0};
    int ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &c.me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (ranks != 2)
        die("faces needs 2 ranks; start it with", "mpiexec -n 2");
    c.other = 1 - c.me;

    long iters = option_number(argc, argv, "--iters", 0), list[NUMBERS_MAX];
    int len = numbers(option(argc, argv, "--n", "64,256"), list);
    for (int i = 0; i < len; i++) {
        if (list[i] < 2 || list[i] > 512)
            die("--n takes 2 to 512 cells, not", option(argc, argv, "--n", ""));
        c.n = (int)list[i];
        c.edge = c.n + 2;
        c.field = room((size_t)(c.edge * c.edge * c.edge) * sizeof(double));
        for (c.axis = 0; c.axis < AXES; c.axis++) {
            c.face = face_type(&c);
            measure(&c, iters);
            MPI_Type_free(&c.face);
        }
        free(c.field);
    }
    MPI_Finalize();
    return 0;
}
