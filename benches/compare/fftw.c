/* A 3-D transform of real numbers with FFTW's own MPI layer: what the example p3dfft is compared with.
 *
 *   fftw [--n 128] [--iters I]
 *
 * N x N x N doubles in slabs along the slowest dimension; r2c and c2r, in place, both leave the transposed order alone
 * (FFTW_MPI_TRANSPOSED_OUT and _IN), which saves FFTW two of its four transposes. Planned with FFTW_MEASURE, after which
 * there is nothing faster to choose but FFTW_PATIENT, which takes minutes.
 *
 * `median_us` is forward and backward together, on the slowest rank of each iteration; `error` is the largest difference
 * from the field after there and back. */
#include <math.h>
#include <mpi.h>

#include <fftw3-mpi.h>

#include "common.h"

struct box {
    ptrdiff_t n;
    ptrdiff_t width; /* doubles in a row, with the padding of an r2c in place */
    ptrdiff_t planes;
    ptrdiff_t first;
    double *data;
    fftw_plan forward;
    fftw_plan backward;
};

static double value(const struct box *b, ptrdiff_t z, ptrdiff_t y, ptrdiff_t x)
{
    double step = 2 * M_PI / (double)b->n;
    return sin(step * (double)x) * sin(step * (double)y) * sin(step * (double)(z + b->first));
}

static struct box box_new(ptrdiff_t n, unsigned how)
{
    struct box b = {.n = n, .width = 2 * (n / 2 + 1)};
    ptrdiff_t planes_out, first_out;
    ptrdiff_t room_for = fftw_mpi_local_size_3d_transposed(n, n, n / 2 + 1, MPI_COMM_WORLD, &b.planes, &b.first,
                                                           &planes_out, &first_out);
    b.data = fftw_alloc_real(2 * (size_t)room_for);
    if (!b.data)
        die("no memory for a box of this size", "see --n");
    memset(b.data, 0, 2 * (size_t)room_for * sizeof(double));
    fftw_complex *modes = (fftw_complex *)b.data;
    b.forward =
        fftw_mpi_plan_dft_r2c_3d(n, n, n, b.data, modes, MPI_COMM_WORLD, how | FFTW_MPI_TRANSPOSED_OUT);
    b.backward =
        fftw_mpi_plan_dft_c2r_3d(n, n, n, modes, b.data, MPI_COMM_WORLD, how | FFTW_MPI_TRANSPOSED_IN);
    if (!b.forward || !b.backward)
        die("FFTW has no plan for this", "see --n");
    return b;
}

static void box_free(struct box *b)
{
    fftw_destroy_plan(b->forward), fftw_destroy_plan(b->backward);
    fftw_free(b->data);
}

static void fill(struct box *b)
{
    for (ptrdiff_t z = 0; z < b->planes; z++)
        for (ptrdiff_t y = 0; y < b->n; y++)
            for (ptrdiff_t x = 0; x < b->n; x++)
                b->data[(z * b->n + y) * b->width + x] = value(b, z, y, x);
}

static double error(const struct box *b)
{
    double worst = 0, points = (double)b->n * (double)b->n * (double)b->n;
    for (ptrdiff_t z = 0; z < b->planes; z++)
        for (ptrdiff_t y = 0; y < b->n; y++)
            for (ptrdiff_t x = 0; x < b->n; x++)
                worst = fmax(worst, fabs(b->data[(z * b->n + y) * b->width + x] / points - value(b, z, y, x)));
    return worst;
}

static double there_and_back(struct box *b)
{
    MPI_Barrier(MPI_COMM_WORLD);
    double start = now_us();
    fftw_execute(b->forward);
    fftw_execute(b->backward);
    double mine = now_us() - start, slowest;
    MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return slowest;
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    fftw_mpi_init();
    long n = option_number(argc, argv, "--n", 128), iters = option_number(argc, argv, "--iters", 20);
    if (n < 2 || iters < 1)
        die("give at least", "--n 2 and --iters 1");
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank), MPI_Comm_size(MPI_COMM_WORLD, &ranks);

    struct box b = box_new(n, FFTW_MEASURE); /* planning overwrites the data */
    fill(&b);
    there_and_back(&b);
    double mine = error(&b), worst;
    /* All ranks have this error, and each of them ends with it. */
    MPI_Allreduce(&mine, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    struct samples s = samples_new((int)iters);
    for (long i = 0; i < iters + 2; i++) {
        fill(&b);
        double us = there_and_back(&b);
        if (i >= 2)
            samples_push(&s, us);
    }
    samples_sort(&s);
    if (rank == 0)
        printf("{\"program\":\"fftw\",\"peer\":\"" PEER "\",\"n\":%ld,\"ranks\":%d,\"median_us\":%.1f,\"min_us\":%.1f,"
               "\"error\":%.3e,\"iters\":%ld}\n",
               n, ranks, samples_at(&s, 0.5), samples_at(&s, 0), worst, iters);
    box_free(&b);
    MPI_Finalize();
    return worst < 1e-13 ? 0 : 1;
}
