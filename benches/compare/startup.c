/*
 * The shortest program in which every rank has communicated with every other once. Its launcher measures the wall time.
 *
 * With the argument `--in-turn`, the ranks of each pair first exchange messages, one pair after the other, so that no two of them
 * connect to each other at the same time. After crossing connections, MPICH 4.0.2 over UCX's TCP hangs in MPI_Finalize now and
 * then: a rank waits for an answer of another one, which waits for PMI's last barrier and reads no socket.
 */
#include <mpi.h>

#include "common.h"

static void connect_in_turn(int me, int ranks)
{
    for (int low = 0; low < ranks; low++) {
        for (int high = low + 1; high < ranks; high++) {
            if (me == low) {
                MPI_Send(NULL, 0, MPI_BYTE, high, 0, MPI_COMM_WORLD);
                MPI_Recv(NULL, 0, MPI_BYTE, high, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            } else if (me == high) {
                MPI_Recv(NULL, 0, MPI_BYTE, low, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
                MPI_Send(NULL, 0, MPI_BYTE, low, 0, MPI_COMM_WORLD);
            }
        }
    }
}

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int me, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (argc > 1 && strcmp(argv[1], "--in-turn") == 0)
        connect_in_turn(me, ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        printf("{\"program\":\"startup\",\"peer\":\"%s\",\"ranks\":%d}\n", PEER, ranks);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
