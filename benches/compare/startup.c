/* The shortest program in which every rank has communicated with every other once. Its launcher measures the wall time. */
#include <mpi.h>

#include "common.h"

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    int me, ranks;
    MPI_Comm_rank(MPI_COMM_WORLD, &me);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    MPI_Barrier(MPI_COMM_WORLD);
    if (me == 0) {
        printf("{\"program\":\"startup\",\"peer\":\"%s\",\"ranks\":%d}\n", PEER, ranks);
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
