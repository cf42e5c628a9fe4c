//! The structures and constants of `abi`, compared with the C header of this machine.

use std::{fmt::Write, io::Write as _, mem::offset_of, process::Command};

use super::abi;

/// Returns all that is compared: an expression in C, and its value here.
fn table() -> Vec<(String, u64)> {
    [structures(), beginnings(), constants()].concat()
}

fn structures() -> Vec<(String, u64)> {
    let mut all = Vec::new();
    macro_rules! layout {
        ($($c:literal is $rust:ident { $($c_field:literal is $($field:ident).+),* $(,)? })*) => {$(
            all.push((format!("sizeof(struct {})", $c), size_of::<abi::$rust>() as u64));
            $(all.push((
                format!("offsetof(struct {}, {})", $c, $c_field),
                offset_of!(abi::$rust, $($field).+) as u64,
            ));)*
        )*};
    }
    layout! {
        "ibv_device_attr" is IbvDeviceAttr {
            "max_mr_size" is max_mr_size, "max_qp" is max_qp, "max_qp_wr" is max_qp_wr, "max_cqe" is max_cqe,
            "max_qp_rd_atom" is max_qp_rd_atom, "max_qp_init_rd_atom" is max_qp_init_rd_atom,
            "atomic_cap" is atomic_cap, "max_srq" is max_srq, "max_srq_wr" is max_srq_wr,
            "phys_port_cnt" is phys_port_cnt,
        }
        "ibv_port_attr" is IbvPortAttr {
            "state" is state, "active_mtu" is active_mtu, "max_msg_sz" is max_msg_sz, "lid" is lid,
            "lmc" is bytes, "port_cap_flags2" is port_cap_flags2,
        }
        "ibv_qp_init_attr" is IbvQpInitAttr {
            "send_cq" is send_cq, "recv_cq" is recv_cq, "srq" is srq, "cap" is cap,
            "cap.max_inline_data" is cap.max_inline_data, "qp_type" is qp_type, "sq_sig_all" is sq_sig_all,
        }
        "ibv_srq_init_attr" is IbvSrqInitAttr {
            "attr.max_wr" is max_wr, "attr.max_sge" is max_sge, "attr.srq_limit" is srq_limit,
        }
        "ibv_ah_attr" is IbvAhAttr {
            "grh.dgid" is grh.dgid, "grh.flow_label" is grh.flow_label, "grh.sgid_index" is grh.sgid_index,
            "grh.hop_limit" is grh.hop_limit, "grh.traffic_class" is grh.traffic_class, "dlid" is dlid,
            "is_global" is is_global, "port_num" is port_num,
        }
        "ibv_qp_attr" is IbvQpAttr {
            "qp_state" is qp_state, "path_mtu" is path_mtu, "qkey" is qkey, "rq_psn" is rq_psn, "sq_psn" is sq_psn,
            "dest_qp_num" is dest_qp_num, "qp_access_flags" is qp_access_flags, "cap" is cap,
            "ah_attr" is ah_attr, "alt_ah_attr" is alt_ah_attr, "pkey_index" is pkey_index,
            "max_rd_atomic" is max_rd_atomic, "max_dest_rd_atomic" is max_dest_rd_atomic,
            "min_rnr_timer" is min_rnr_timer, "port_num" is port_num, "timeout" is timeout,
            "retry_cnt" is retry_cnt, "rnr_retry" is rnr_retry, "rate_limit" is rate_limit,
        }
        "ibv_sge" is IbvSge { "addr" is addr, "length" is length, "lkey" is lkey }
        "ibv_recv_wr" is IbvRecvWr {
            "wr_id" is wr_id, "next" is next, "sg_list" is sg_list, "num_sge" is num_sge,
        }
        "ibv_send_wr" is IbvSendWr {
            "wr_id" is wr_id, "next" is next, "sg_list" is sg_list, "num_sge" is num_sge, "opcode" is opcode,
            "send_flags" is send_flags, "imm_data" is imm_data,
            "wr.rdma.remote_addr" is wr.first, "wr.rdma.rkey" is wr.second,
            "wr.atomic.remote_addr" is wr.first, "wr.atomic.compare_add" is wr.second,
            "wr.atomic.swap" is wr.swap, "wr.atomic.rkey" is wr.key,
            "wr.ud.ah" is wr.first, "wr.ud.remote_qpn" is wr.second,
        }
        "ibv_wc" is IbvWc {
            "wr_id" is wr_id, "status" is status, "opcode" is opcode, "byte_len" is byte_len,
            "imm_data" is imm_data, "qp_num" is qp_num, "src_qp" is src_qp, "wc_flags" is wc_flags,
            "dlid_path_bits" is dlid_path_bits,
        }
        "ibv_async_event" is IbvAsyncEvent { "element" is element, "event_type" is event_type }
    }
    // The key of a queue pair is the second half of a word.
    let second = offset_of!(abi::IbvSendWr, wr.second) + size_of::<u32>();
    all.push((
        "offsetof(struct ibv_send_wr, wr.ud.remote_qkey)".to_owned(),
        second as u64,
    ));
    all
}

/// Returns offsets in structures of which only the first fields are used.
fn beginnings() -> Vec<(String, u64)> {
    let mut all = Vec::new();
    macro_rules! prefix {
        ($($c:literal is $rust:ident { $($field:ident),* })*) => {$($(
            all.push((
                format!("offsetof(struct {}, {})", $c, stringify!($field)),
                offset_of!(abi::$rust, $field) as u64,
            ));
        )*)*};
    }
    prefix! {
        "ibv_mr" is IbvMr { addr, length, handle, lkey, rkey }
        "ibv_qp" is IbvQp { send_cq, srq, handle, qp_num }
        "ibv_cq" is IbvCq { channel, handle, cqe }
        "ibv_comp_channel" is IbvCompChannel { fd, refcnt }
        "ibv_context" is IbvContext { device, ops, cmd_fd, async_fd, num_comp_vectors }
        "ibv_context_ops" is IbvContextOps { poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv }
    }
    all.push((
        "sizeof(struct ibv_context_ops)".to_owned(),
        size_of::<abi::IbvContextOps>() as u64,
    ));
    all
}

fn constants() -> Vec<(String, u64)> {
    let mut all = Vec::new();
    macro_rules! constants {
        ($($c:literal is $rust:ident)*) => {
            $(all.push((format!("(unsigned long)({})", $c), u64::from(abi::$rust.cast_unsigned_32())));)*
        };
    }
    constants! {
        "IBV_PORT_ACTIVE" is PORT_ACTIVE "IBV_ATOMIC_NONE" is ATOMIC_NONE
        "IBV_QPT_RC" is QPT_RC "IBV_QPT_UD" is QPT_UD
        "IBV_QPS_RESET" is QPS_RESET
        "IBV_QPS_INIT" is QPS_INIT "IBV_QPS_RTR" is QPS_RTR "IBV_QPS_RTS" is QPS_RTS "IBV_QPS_ERR" is QPS_ERR
        "IBV_QP_STATE" is QP_STATE "IBV_QP_ACCESS_FLAGS" is QP_ACCESS_FLAGS "IBV_QP_PKEY_INDEX" is QP_PKEY_INDEX
        "IBV_QP_PORT" is QP_PORT "IBV_QP_QKEY" is QP_QKEY "IBV_QP_AV" is QP_AV "IBV_QP_PATH_MTU" is QP_PATH_MTU
        "IBV_QP_TIMEOUT" is QP_TIMEOUT "IBV_QP_RETRY_CNT" is QP_RETRY_CNT "IBV_QP_RNR_RETRY" is QP_RNR_RETRY
        "IBV_QP_RQ_PSN" is QP_RQ_PSN "IBV_QP_MAX_QP_RD_ATOMIC" is QP_MAX_QP_RD_ATOMIC
        "IBV_QP_MIN_RNR_TIMER" is QP_MIN_RNR_TIMER "IBV_QP_SQ_PSN" is QP_SQ_PSN
        "IBV_QP_MAX_DEST_RD_ATOMIC" is QP_MAX_DEST_RD_ATOMIC "IBV_QP_DEST_QPN" is QP_DEST_QPN
        "IBV_ACCESS_LOCAL_WRITE" is ACCESS_LOCAL_WRITE "IBV_ACCESS_REMOTE_WRITE" is ACCESS_REMOTE_WRITE
        "IBV_ACCESS_REMOTE_READ" is ACCESS_REMOTE_READ "IBV_ACCESS_REMOTE_ATOMIC" is ACCESS_REMOTE_ATOMIC
        "IBV_WR_RDMA_WRITE" is WR_RDMA_WRITE "IBV_WR_RDMA_WRITE_WITH_IMM" is WR_RDMA_WRITE_WITH_IMM
        "IBV_WC_RECV_RDMA_WITH_IMM" is WC_RECV_RDMA_WITH_IMM "IBV_WR_SEND" is WR_SEND "IBV_WR_RDMA_READ" is WR_RDMA_READ
        "IBV_WR_ATOMIC_CMP_AND_SWP" is WR_COMPARE_SWAP "IBV_WR_ATOMIC_FETCH_AND_ADD" is WR_FETCH_ADD
        "IBV_SEND_SIGNALED" is SEND_SIGNALED "IBV_SEND_SOLICITED" is SEND_SOLICITED
        "IBV_SEND_INLINE" is SEND_INLINE "IBV_WC_SUCCESS" is WC_SUCCESS "IBV_WC_WR_FLUSH_ERR" is WC_FLUSHED
        "IBV_WC_RETRY_EXC_ERR" is WC_RETRIES_EXCEEDED "IBV_WC_LOC_QP_OP_ERR" is WC_LOCAL_OPERATION
        "IBV_WC_BAD_RESP_ERR" is WC_BAD_RESPONSE "IBV_WC_REM_OP_ERR" is WC_REMOTE_OPERATION
        "IBV_WC_REM_ABORT_ERR" is WC_REMOTE_ABORTED "IBV_WC_FATAL_ERR" is WC_FATAL
        "IBV_WC_RESP_TIMEOUT_ERR" is WC_RESPONSE_TIMEOUT "IBV_WC_GENERAL_ERR" is WC_GENERAL
        "IBV_EVENT_CQ_ERR" is EVENT_CQ_ERR "IBV_EVENT_QP_FATAL" is EVENT_QP_FATAL "IBV_EVENT_QP_REQ_ERR" is EVENT_QP_REQ_ERR
        "IBV_EVENT_QP_ACCESS_ERR" is EVENT_QP_ACCESS_ERR "IBV_EVENT_COMM_EST" is EVENT_COMM_EST
        "IBV_EVENT_SQ_DRAINED" is EVENT_SQ_DRAINED "IBV_EVENT_PATH_MIG" is EVENT_PATH_MIG
        "IBV_EVENT_PATH_MIG_ERR" is EVENT_PATH_MIG_ERR "IBV_EVENT_DEVICE_FATAL" is EVENT_DEVICE_FATAL
        "IBV_EVENT_PORT_ACTIVE" is EVENT_PORT_ACTIVE "IBV_EVENT_PORT_ERR" is EVENT_PORT_ERR
        "IBV_EVENT_LID_CHANGE" is EVENT_LID_CHANGE "IBV_EVENT_PKEY_CHANGE" is EVENT_PKEY_CHANGE
        "IBV_EVENT_SM_CHANGE" is EVENT_SM_CHANGE "IBV_EVENT_SRQ_ERR" is EVENT_SRQ_ERR
        "IBV_EVENT_SRQ_LIMIT_REACHED" is EVENT_SRQ_LIMIT_REACHED "IBV_EVENT_QP_LAST_WQE_REACHED" is EVENT_QP_LAST_WQE_REACHED
        "IBV_EVENT_CLIENT_REREGISTER" is EVENT_CLIENT_REREGISTER "IBV_EVENT_GID_CHANGE" is EVENT_GID_CHANGE
    }
    all
}

/// Conversion of constants, since C has signed enumerations in some places and flags in others. All constants here are small.
trait Unsigned {
    fn cast_unsigned_32(self) -> u32;
}

impl Unsigned for i32 {
    fn cast_unsigned_32(self) -> u32 {
        self.cast_unsigned()
    }
}

impl Unsigned for u32 {
    fn cast_unsigned_32(self) -> u32 {
        self
    }
}

fn program(table: &[(String, u64)]) -> String {
    let mut c = "#include <infiniband/verbs.h>\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n".to_owned();
    for (expression, _) in table {
        writeln!(c, "printf(\"%lu\\n\", (unsigned long)({expression}));").unwrap();
    }
    c + "return 0; }\n"
}

/// Needs a C compiler and the header of libibverbs (Debian: gcc, libibverbs-dev). They must be there if `RIPSTOP_VERBS_REQUIRED`
/// is set.
#[test]
fn structures_and_constants_are_those_of_the_c_header() {
    let table = table();
    let folder = std::env::temp_dir().join(format!("ripstop-abi-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let source = folder.join("abi.c");
    std::fs::write(&source, program(&table)).unwrap();
    let binary = folder.join("abi");
    let built = Command::new("cc")
        .arg(&source)
        .arg("-o")
        .arg(&binary)
        .output();
    let printed = match &built {
        Ok(built) if built.status.success() => Command::new(&binary).output().ok(),
        _ => None,
    };
    std::fs::remove_dir_all(&folder).unwrap();
    let Some(printed) = printed else {
        let why = built.map_or_else(
            |why| why.to_string(),
            |built| String::from_utf8_lossy(&built.stderr).into_owned(),
        );
        assert!(
            std::env::var_os("RIPSTOP_VERBS_REQUIRED").is_none(),
            "cc or the header is missing: {why}"
        );
        writeln!(
            std::io::stderr(),
            "not compared: install gcc and libibverbs-dev"
        )
        .unwrap();
        return;
    };
    let printed = String::from_utf8(printed.stdout).unwrap();
    let theirs: Vec<u64> = printed.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!(theirs.len(), table.len());
    for ((expression, ours), theirs) in table.iter().zip(theirs) {
        assert_eq!(*ours, theirs, "{expression}");
    }
}
