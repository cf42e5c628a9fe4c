/* Calls of one kind on one rank, whose instructions `cargo xtask bench instructions --peers` counts.
 *
 *     instructions ROW CALLS
 */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TAG = 7 };

static uint64_t sent = 1, received;

static void wait_both(MPI_Request *both)
{
    MPI_Wait(&both[1], MPI_STATUS_IGNORE);
    MPI_Wait(&both[0], MPI_STATUS_IGNORE);
}

static void message(long calls, int from, int tag)
{
    for (long i = 0; i < calls; i++) {
        MPI_Request both[2];
        MPI_Irecv(&received, 1, MPI_UINT64_T, from, tag, MPI_COMM_WORLD, &both[0]);
        MPI_Isend(&sent, 1, MPI_UINT64_T, 0, TAG, MPI_COMM_WORLD, &both[1]);
        wait_both(both);
    }
}

static void channel(long calls)
{
    MPI_Request both[2];
    MPI_Recv_init(&received, 1, MPI_UINT64_T, 0, TAG, MPI_COMM_WORLD, &both[0]);
    MPI_Send_init(&sent, 1, MPI_UINT64_T, 0, TAG, MPI_COMM_WORLD, &both[1]);
    for (long i = 0; i < calls; i++) {
        MPI_Startall(2, both);
        wait_both(both);
    }
    MPI_Request_free(&both[0]);
    MPI_Request_free(&both[1]);
}

static void probe(long calls)
{
    for (long i = 0; i < calls; i++) {
        MPI_Request send;
        MPI_Message found;
        MPI_Isend(&sent, 1, MPI_UINT64_T, 0, TAG, MPI_COMM_WORLD, &send);
        MPI_Mprobe(0, TAG, MPI_COMM_WORLD, &found, MPI_STATUS_IGNORE);
        MPI_Mrecv(&received, 1, MPI_UINT64_T, &found, MPI_STATUS_IGNORE);
        MPI_Wait(&send, MPI_STATUS_IGNORE);
    }
}

static void collective(const char *row, long calls)
{
    for (long i = 0; i < calls; i++) {
        if (!strcmp(row, "bcast"))
            MPI_Bcast(&sent, 1, MPI_UINT64_T, 0, MPI_COMM_WORLD);
        else if (!strcmp(row, "barrier"))
            MPI_Barrier(MPI_COMM_WORLD);
        else
            MPI_Allreduce(&sent, &received, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    }
}

static void fences(MPI_Win window, long calls)
{
    for (long i = 0; i < calls; i++) {
        MPI_Win_fence(0, window);
        MPI_Put(&sent, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, window);
        MPI_Win_fence(0, window);
    }
}

static void pscw(MPI_Win window, long calls)
{
    MPI_Group self;
    MPI_Comm_group(MPI_COMM_WORLD, &self);
    for (long i = 0; i < calls; i++) {
        MPI_Win_post(self, 0, window);
        MPI_Win_start(self, 0, window);
        MPI_Put(&sent, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, window);
        MPI_Win_complete(window);
        MPI_Win_wait(window);
    }
    MPI_Group_free(&self);
}

static void passive(MPI_Win window, long calls, int fetches)
{
    MPI_Win_lock_all(0, window);
    for (long i = 0; i < calls; i++) {
        if (fetches)
            MPI_Fetch_and_op(&sent, &received, MPI_UINT64_T, 0, 0, MPI_SUM, window);
        else
            MPI_Put(&sent, 1, MPI_UINT64_T, 0, 0, 1, MPI_UINT64_T, window);
        MPI_Win_flush(0, window);
    }
    MPI_Win_unlock_all(window);
}

static int windows(const char *row, long calls)
{
    MPI_Win window;
    uint64_t *memory;
    MPI_Win_allocate(8, 8, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
    int known = 1;
    if (!strcmp(row, "fence"))
        fences(window, calls);
    else if (!strcmp(row, "pscw"))
        pscw(window, calls);
    else if (!strcmp(row, "put"))
        passive(window, calls, 0);
    else if (!strcmp(row, "fetch_add"))
        passive(window, calls, 1);
    else
        known = 0;
    MPI_Win_free(&window);
    return known;
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "give a row and a number of calls\n");
        return 2;
    }
    const char *row = argv[1];
    long calls = strtol(argv[2], NULL, 10);
    int known = 1;
    MPI_Init(&argc, &argv);
    if (!strcmp(row, "message"))
        message(calls, 0, TAG);
    else if (!strcmp(row, "wildcard"))
        message(calls, MPI_ANY_SOURCE, MPI_ANY_TAG);
    else if (!strcmp(row, "channel"))
        channel(calls);
    else if (!strcmp(row, "probe"))
        probe(calls);
    else if (!strcmp(row, "bcast") || !strcmp(row, "barrier") || !strcmp(row, "all_reduce"))
        collective(row, calls);
    else
        known = windows(row, calls);
    MPI_Finalize();
    if (!known)
        fprintf(stderr, "there is no row %s\n", row);
    return known ? 0 : 2;
}
