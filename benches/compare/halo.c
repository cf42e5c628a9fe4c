/* A 3-D 7-point heat stencil; each rank holds a cube of n x n x n cells. README.md gives the layout, the order of the
 * loops and of the sum, and the decomposition; the Rust example does the very same work.
 *
 *   halo [--n 64] [--steps S] [--mode blocking|overlap|both]
 *
 * blocking: exchange the six faces of u, then update all cells.
 * overlap:  update the cells next to a neighbor, start their exchange, update the rest meanwhile, wait.
 *
 * `median_us` is the whole step, `comm_us` the part in which the rank packs, posts, waits and unpacks; both are medians
 * over the steps on the slowest rank. `error` is the largest difference from the exact decay of the sine mode. */
#include <math.h>
#include <mpi.h>

#include "common.h"

#define ALPHA 0.1

enum { SIDES = 6 }; /* z low, z high, y low, y high, x low, x high */
enum { Z, Y, X };

struct cube {
    int n;
    long row;   /* cells from (z, y, x) to (z, y + 1, x) */
    long plane; /* cells from (z, y, x) to (z + 1, y, x) */
    int grid[3];
    int at[3];
    int neighbor[SIDES];
    double *u;
    double *v;
    double *out[SIDES];
    double *in[SIDES];
};

struct block {
    int low[3];
    int high[3]; /* one past the last */
};

/* ---- the decomposition ---- */

/* gz >= gy >= gx with gz * gy * gx = ranks and the smallest gz + gy + gx: the slowest dimension is split first. */
static void choose_grid(int ranks, int grid[3])
{
    int best = 0;
    for (int gx = 1; gx * gx * gx <= ranks; gx++)
        for (int gy = gx; gx * gy * gy <= ranks; gy++) {
            int gz = ranks / (gx * gy);
            if (gx * gy * gz == ranks && (!best || gx + gy + gz < best)) {
                best = gx + gy + gz;
                grid[Z] = gz, grid[Y] = gy, grid[X] = gx;
            }
        }
}

static int rank_at(const struct cube *c, int z, int y, int x)
{
    if (z < 0 || z >= c->grid[Z] || y < 0 || y >= c->grid[Y] || x < 0 || x >= c->grid[X])
        return MPI_PROC_NULL;
    return (z * c->grid[Y] + y) * c->grid[X] + x;
}

static struct cube cube_new(int n, int rank, int ranks)
{
    struct cube c = {.n = n, .row = n + 2, .plane = (long)(n + 2) * (n + 2)};
    choose_grid(ranks, c.grid);
    int z = c.at[Z] = rank / (c.grid[X] * c.grid[Y]), y = c.at[Y] = rank / c.grid[X] % c.grid[Y],
        x = c.at[X] = rank % c.grid[X];
    int next[SIDES] = {rank_at(&c, z - 1, y, x), rank_at(&c, z + 1, y, x), rank_at(&c, z, y - 1, x),
                       rank_at(&c, z, y + 1, x), rank_at(&c, z, y, x - 1), rank_at(&c, z, y, x + 1)};
    memcpy(c.neighbor, next, sizeof next);
    size_t cells = (size_t)c.plane * (size_t)(n + 2);
    c.u = room(cells * sizeof(double)), c.v = room(cells * sizeof(double));
    for (size_t i = 0; i < cells; i++)
        c.u[i] = c.v[i] = 0;
    for (int side = 2; side < SIDES; side++) {
        c.out[side] = room((size_t)n * (size_t)n * sizeof(double));
        c.in[side] = room((size_t)n * (size_t)n * sizeof(double));
    }
    return c;
}

static void cube_free(struct cube *c)
{
    for (int side = 2; side < SIDES; side++)
        free(c->out[side]), free(c->in[side]);
    free(c->u), free(c->v);
}

/* ---- the exchange ---- */

/* Copies the rows y (side 2, 3) or the columns x (side 4, 5) of all planes to or from `face`. */
static void copy_face(const struct cube *c, double *u, double *face, int side, int ghost, int packing)
{
    int n = c->n, high = side & 1;
    int layer = high ? n + ghost : 1 - ghost;
    for (int z = 1; z <= n; z++) {
        double *from = u + z * c->plane + (side < 4 ? layer * c->row + 1 : c->row + layer);
        double *line = face + (long)(z - 1) * n;
        long stride = side < 4 ? 1 : c->row;
        for (int i = 0; i < n; i++)
            if (packing)
                line[i] = from[i * stride];
            else
                from[i * stride] = line[i];
    }
}

static int exchange_start(struct cube *c, double *u, MPI_Request *request)
{
    int pending = 0, n = c->n;
    for (int side = 0; side < SIDES; side++) {
        if (c->neighbor[side] == MPI_PROC_NULL)
            continue;
        /* A z face lies in one piece, with its ghost rim, so it needs no packing; the rim is never read. */
        int flat = side < 2, count = flat ? (int)c->plane : n * n;
        double *in = flat ? u + (side == 0 ? 0 : n + 1) * c->plane : c->in[side];
        double *out = flat ? u + (side == 0 ? 1 : n) * c->plane : c->out[side];
        MPI_Irecv(in, count, MPI_DOUBLE, c->neighbor[side], side ^ 1, MPI_COMM_WORLD, &request[pending++]);
        if (!flat)
            copy_face(c, u, out, side, 0, 1);
        MPI_Isend(out, count, MPI_DOUBLE, c->neighbor[side], side, MPI_COMM_WORLD, &request[pending++]);
    }
    return pending;
}

static void exchange_finish(struct cube *c, double *u, MPI_Request *request, int pending)
{
    MPI_Waitall(pending, request, MPI_STATUSES_IGNORE);
    for (int side = 2; side < SIDES; side++)
        if (c->neighbor[side] != MPI_PROC_NULL)
            copy_face(c, u, c->in[side], side, 1, 0);
}

/* ---- the stencil ---- */

static void update(const struct cube *c, const double *restrict u, double *restrict v, struct block b)
{
    long row = c->row, plane = c->plane;
    for (int z = b.low[Z]; z < b.high[Z]; z++)
        for (int y = b.low[Y]; y < b.high[Y]; y++) {
            long line = z * plane + y * row;
            for (long i = line + b.low[X]; i < line + b.high[X]; i++) {
                double sum = u[i - 1] + u[i + 1] + u[i - row] + u[i + row] + u[i - plane] + u[i + plane];
                v[i] = u[i] + ALPHA * (sum - 6.0 * u[i]);
            }
        }
}

static struct block all_cells(const struct cube *c)
{
    struct block b = {{1, 1, 1}, {c->n + 1, c->n + 1, c->n + 1}};
    return b;
}

/* Updates every cell that a neighbor needs, once, and returns the remaining block. */
static struct block update_boundary(const struct cube *c, const double *u, double *v)
{
    struct block rest = all_cells(c);
    for (int side = 0; side < SIDES; side++) {
        if (c->neighbor[side] == MPI_PROC_NULL)
            continue;
        int dim = side / 2;
        struct block layer = rest;
        if (side & 1)
            layer.low[dim] = --rest.high[dim];
        else
            layer.high[dim] = ++rest.low[dim];
        update(c, u, v, layer);
    }
    return rest;
}

/* ---- a step; returns the time of its communication ---- */

static double step_blocking(struct cube *c)
{
    MPI_Request request[2 * SIDES];
    double start = now_us();
    exchange_finish(c, c->u, request, exchange_start(c, c->u, request));
    double spent = now_us() - start;
    update(c, c->u, c->v, all_cells(c));
    return spent;
}

static double step_overlap(struct cube *c)
{
    MPI_Request request[2 * SIDES];
    struct block rest = update_boundary(c, c->u, c->v);
    double start = now_us();
    int pending = exchange_start(c, c->v, request);
    double posted = now_us();
    update(c, c->u, c->v, rest);
    double back = now_us();
    exchange_finish(c, c->v, request, pending);
    return now_us() - back + posted - start;
}

static void swap(struct cube *c)
{
    double *u = c->u;
    c->u = c->v;
    c->v = u;
}

/* ---- the problem ---- */

static double mode_at(const struct cube *c, int dim, int i)
{
    return sin(M_PI * (c->at[dim] * c->n + i) / (c->grid[dim] * c->n + 1));
}

static void start_mode(struct cube *c)
{
    for (int z = 1; z <= c->n; z++)
        for (int y = 1; y <= c->n; y++)
            for (int x = 1; x <= c->n; x++)
                c->u[z * c->plane + y * c->row + x] = mode_at(c, X, x) * mode_at(c, Y, y) * mode_at(c, Z, z);
}

static double error(const struct cube *c, long steps)
{
    double factor = 1 - 6 * ALPHA, worst = 0;
    for (int dim = 0; dim < 3; dim++)
        factor += 2 * ALPHA * cos(M_PI / (c->grid[dim] * c->n + 1));
    double scale = pow(factor, (double)steps);
    for (int z = 1; z <= c->n; z++)
        for (int y = 1; y <= c->n; y++)
            for (int x = 1; x <= c->n; x++) {
                double exact = scale * mode_at(c, X, x) * mode_at(c, Y, y) * mode_at(c, Z, z);
                worst = fmax(worst, fabs(c->u[z * c->plane + y * c->row + x] - exact));
            }
    MPI_Allreduce(MPI_IN_PLACE, &worst, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    return worst;
}

static void run(const char *mode, int n, long steps, int rank, int ranks)
{
    struct cube c = cube_new(n, rank, ranks);
    int overlap = strcmp(mode, "overlap") == 0;
    long warm = steps / 10 + 5;
    struct samples whole = samples_new((int)steps), comm = samples_new((int)steps);
    MPI_Request request[2 * SIDES];
    start_mode(&c);
    exchange_finish(&c, c.u, request, exchange_start(&c, c.u, request));
    MPI_Barrier(MPI_COMM_WORLD);
    for (long i = -warm; i < steps; i++) {
        double start = now_us();
        double spent = overlap ? step_overlap(&c) : step_blocking(&c);
        swap(&c);
        if (i >= 0)
            samples_push(&whole, now_us() - start), samples_push(&comm, spent);
    }
    samples_sort(&whole), samples_sort(&comm);
    double figure[4] = {samples_at(&whole, 0.5), samples_at(&comm, 0.5), samples_at(&whole, 0.99), whole.value[0]};
    MPI_Allreduce(MPI_IN_PLACE, figure, 4, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    double worst = error(&c, warm + steps);
    if (rank == 0) {
        printf("{\"program\":\"halo\",\"peer\":\"%s\",\"mode\":\"%s\",\"n\":%d,\"ranks\":%d,\"grid\":[%d,%d,%d],"
               "\"median_us\":%.2f,\"comm_us\":%.2f,\"p99_us\":%.2f,\"min_us\":%.2f,\"error\":%.3e,\"steps\":%ld}\n",
               PEER, mode, n, ranks, c.grid[Z], c.grid[Y], c.grid[X], figure[0], figure[1], figure[2], figure[3], worst,
               steps);
        fflush(stdout);
    }
    cube_free(&c);
    free(whole.value), free(comm.value);
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int rank, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    int n = (int)option_number(argc, argv, "--n", 64);
    if (n < 2)
        die("--n takes at least 2 cells, not", option(argc, argv, "--n", ""));
    long steps = option_number(argc, argv, "--steps", n <= 64 ? 2000 : 200);
    const char *mode = option(argc, argv, "--mode", "both");
    if (strcmp(mode, "overlap") != 0)
        run("blocking", n, steps, rank, ranks);
    if (strcmp(mode, "blocking") != 0)
        run("overlap", n, steps, rank, ranks);
    MPI_Finalize();
    return 0;
}
