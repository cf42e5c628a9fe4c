//! The attributes say what they take.

#[ripstop::test(ranks = 0)]
async fn no_ranks(_: ripstop::Comm) {}

#[ripstop::test]
async fn how_many(_: ripstop::Comm) {}

#[ripstop::test(ranks = 2, threads)]
async fn unknown(_: ripstop::Comm) {}

#[ripstop::test(ranks = 2)]
fn not_async(_: ripstop::Comm) {}

#[ripstop::test(ranks = 2)]
async fn two_worlds(_: ripstop::Comm, _: ripstop::Comm) {}

mod program {
    #[ripstop::main(ranks = 2)]
    async fn main(_: ripstop::Comm) {}
}

fn main() {}
