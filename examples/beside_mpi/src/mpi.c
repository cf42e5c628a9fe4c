/* What the program needs of MPI. C, because the values of MPI's constants differ between libraries. */

#include <mpi.h>
#include <stddef.h>

/* The start of Ripstop gets a communicator of its own, so that it cannot take messages of the program or of other libraries. */
static MPI_Comm start = MPI_COMM_NULL;

/* Returns 0; 1 if MPI failed; 2 if the library cannot be called by several threads. */
int beside_init(int *rank, int *size)
{
    int level;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level))
        return 1;
    if (level < MPI_THREAD_MULTIPLE)
        return 2;
    return MPI_Comm_dup(MPI_COMM_WORLD, &start) || MPI_Comm_rank(start, rank) || MPI_Comm_size(start, size);
}

/* Gives the rank in the world of the first rank that shares memory with this one. */
int beside_leader(int rank, int *leader)
{
    MPI_Comm node;
    if (MPI_Comm_split_type(start, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node))
        return 1;
    *leader = rank;
    return MPI_Bcast(leader, 1, MPI_INT, 0, node) || MPI_Comm_free(&node);
}

int beside_all_gather(int mine, int *all)
{
    return MPI_Allgather(&mine, 1, MPI_INT, all, 1, MPI_INT, start);
}

int beside_all_gather_bytes(const char *mine, int len, char *all, const int *lens, const int *starts)
{
    return MPI_Allgatherv(mine, len, MPI_CHAR, all, lens, starts, MPI_CHAR, start);
}

/* A call of the program, not of Ripstop's start. */
int beside_sum(double mine, double *sum)
{
    return MPI_Allreduce(&mine, sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
}

/* After the end of MPI nothing but the end of this process is left to the caller. */
void beside_abort(int code)
{
    int ended = 0;
    if (!MPI_Finalized(&ended) && !ended)
        MPI_Abort(MPI_COMM_WORLD, code);
}

int beside_finalize(void)
{
    return MPI_Comm_free(&start) || MPI_Finalize();
}
