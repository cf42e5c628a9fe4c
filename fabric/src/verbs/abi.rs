//! Binary interface of libibverbs: the structures and constants of `infiniband/verbs.h` that this driver uses.
//!
//! `layout.rs` compares all of it with the header of the machine that builds the tests. The header's inline functions are calls
//! through the table in [`IbvContext`]. That includes polling, by the plain `poll_cq`, because the newer `ibv_start_poll` family
//! returns completions that never existed on software devices before rdma-core 55.

use std::ffi::{c_int, c_uint, c_void};

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvContext {
    pub(super) device: *mut IbvDevice,
    pub(super) ops: IbvContextOps,
    pub(super) cmd_fd: c_int,
    pub(super) async_fd: c_int,
    pub(super) num_comp_vectors: c_int,
}

/// Table of functions. Only those that have no exported function of their own are named.
#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvContextOps {
    before: [*mut c_void; 11],
    pub(super) poll_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int, *mut IbvWc) -> c_int>,
    pub(super) req_notify_cq: Option<unsafe extern "C" fn(*mut IbvCq, c_int) -> c_int>,
    between: [*mut c_void; 7],
    pub(super) post_srq_recv: Option<IbvPostRecv<IbvSrq>>,
    about_queue_pairs: [*mut c_void; 4],
    pub(super) post_send:
        Option<unsafe extern "C" fn(*mut IbvQp, *mut IbvSendWr, *mut *mut IbvSendWr) -> c_int>,
    pub(super) post_recv: Option<IbvPostRecv<IbvQp>>,
    after: [*mut c_void; 5],
}

pub(super) type IbvPostRecv<T> =
    unsafe extern "C" fn(*mut T, *mut IbvRecvWr, *mut *mut IbvRecvWr) -> c_int;

/// Types that are only used behind pointers.
#[derive(Debug)]
pub(super) enum IbvDevice {}
#[derive(Debug)]
pub(super) enum IbvPd {}
#[derive(Debug)]
pub(super) enum IbvAh {}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvCompChannel {
    pub(super) context: *mut IbvContext,
    pub(super) fd: c_int,
    pub(super) refcnt: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvCq {
    pub(super) context: *mut IbvContext,
    pub(super) channel: *mut IbvCompChannel,
    pub(super) cq_context: *mut c_void,
    pub(super) handle: u32,
    pub(super) cqe: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvSrq {
    pub(super) context: *mut IbvContext,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvQp {
    pub(super) context: *mut IbvContext,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut IbvPd,
    pub(super) send_cq: *mut IbvCq,
    pub(super) recv_cq: *mut IbvCq,
    pub(super) srq: *mut IbvSrq,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvMr {
    pub(super) context: *mut IbvContext,
    pub(super) pd: *mut IbvPd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IbvDeviceAttr {
    pub(super) fw_ver: [u8; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_int,
    pub(super) others: [c_int; 11],
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    pub(super) max_srq_sge: c_int,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// Attributes of a port. The function that the library exports fills in only the first part.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IbvPortAttr {
    pub(super) state: c_int,
    pub(super) max_mtu: c_int,
    pub(super) active_mtu: c_int,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) bytes: [u8; 10],
    pub(super) port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IbvQpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvQpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut IbvCq,
    pub(super) recv_cq: *mut IbvCq,
    pub(super) srq: *mut IbvSrq,
    pub(super) cap: IbvQpCap,
    pub(super) qp_type: c_int,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct IbvSrqInitAttr {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// 16 bytes that are aligned to eight, because the C type is a union with two words.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IbvGid(pub(super) [u8; 16]);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IbvGlobalRoute {
    pub(super) dgid: IbvGid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IbvAhAttr {
    pub(super) grh: IbvGlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IbvQpAttr {
    pub(super) qp_state: c_int,
    pub(super) cur_qp_state: c_int,
    pub(super) path_mtu: c_int,
    pub(super) path_mig_state: c_int,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: IbvQpCap,
    pub(super) ah_attr: IbvAhAttr,
    pub(super) alt_ah_attr: IbvAhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IbvSge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IbvRecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut IbvSge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IbvSendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut Self,
    pub(super) sg_list: *mut IbvSge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_int,
    pub(super) send_flags: c_uint,
    pub(super) imm_data: u32,
    pub(super) wr: IbvWrDetail,
    /// For queue pairs and operations that are not used here.
    pub(super) others: [u64; 7],
}

/// The words of the union that says where a request goes.
///
/// Writes and reads: address, key. Atomics: address, operand, swap, key. Datagrams: address handle, queue pair and its key.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IbvWrDetail {
    pub(super) first: u64,
    pub(super) second: IbvWrSecond,
    pub(super) swap: u64,
    pub(super) key: u32,
}

/// A word, or its two halves.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IbvWrSecond(pub(super) [u32; 2]);

#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IbvWc {
    pub(super) wr_id: u64,
    pub(super) status: c_int,
    pub(super) opcode: c_int,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct IbvAsyncEvent {
    pub(super) element: u64,
    pub(super) event_type: c_int,
}

pub(super) const PORT_ACTIVE: c_int = 4;
pub(super) const ATOMIC_NONE: c_int = 0;

pub(super) const QPT_RC: c_int = 2;
pub(super) const QPT_UD: c_int = 4;

pub(super) const QPS_RESET: c_int = 0;
pub(super) const QPS_INIT: c_int = 1;
pub(super) const QPS_RTR: c_int = 2;
pub(super) const QPS_RTS: c_int = 3;
pub(super) const QPS_ERR: c_int = 6;

pub(super) const QP_STATE: c_int = 1;
pub(super) const QP_ACCESS_FLAGS: c_int = 1 << 3;
pub(super) const QP_PKEY_INDEX: c_int = 1 << 4;
pub(super) const QP_PORT: c_int = 1 << 5;
pub(super) const QP_QKEY: c_int = 1 << 6;
pub(super) const QP_AV: c_int = 1 << 7;
pub(super) const QP_PATH_MTU: c_int = 1 << 8;
pub(super) const QP_TIMEOUT: c_int = 1 << 9;
pub(super) const QP_RETRY_CNT: c_int = 1 << 10;
pub(super) const QP_RNR_RETRY: c_int = 1 << 11;
pub(super) const QP_RQ_PSN: c_int = 1 << 12;
pub(super) const QP_MAX_QP_RD_ATOMIC: c_int = 1 << 13;
pub(super) const QP_MIN_RNR_TIMER: c_int = 1 << 15;
pub(super) const QP_SQ_PSN: c_int = 1 << 16;
pub(super) const QP_MAX_DEST_RD_ATOMIC: c_int = 1 << 17;
pub(super) const QP_DEST_QPN: c_int = 1 << 20;

pub(super) const ACCESS_LOCAL_WRITE: c_int = 1;
pub(super) const ACCESS_REMOTE_WRITE: c_int = 2;
pub(super) const ACCESS_REMOTE_READ: c_int = 4;
pub(super) const ACCESS_REMOTE_ATOMIC: c_int = 8;

pub(super) const WR_RDMA_WRITE: c_int = 0;
pub(super) const WR_RDMA_WRITE_WITH_IMM: c_int = 1;
pub(super) const WR_SEND: c_int = 2;
pub(super) const WR_RDMA_READ: c_int = 4;
pub(super) const WR_COMPARE_SWAP: c_int = 5;
pub(super) const WR_FETCH_ADD: c_int = 6;

pub(super) const SEND_SIGNALED: c_uint = 2;
pub(super) const SEND_SOLICITED: c_uint = 4;
pub(super) const SEND_INLINE: c_uint = 8;

/// Vendor of soft-RoCE devices. No maker of adapters has this number.
pub(super) const VENDOR_SOFT_ROCE: u32 = 0x00ff_ffff;

pub(super) const WC_SUCCESS: c_int = 0;
pub(super) const WC_LOCAL_OPERATION: c_int = 2;
pub(super) const WC_FLUSHED: c_int = 5;
pub(super) const WC_BAD_RESPONSE: c_int = 7;
pub(super) const WC_REMOTE_OPERATION: c_int = 11;
pub(super) const WC_RETRIES_EXCEEDED: c_int = 12;
pub(super) const WC_REMOTE_ABORTED: c_int = 16;
pub(super) const WC_FATAL: c_int = 19;
pub(super) const WC_RESPONSE_TIMEOUT: c_int = 20;
pub(super) const WC_GENERAL: c_int = 21;

pub(super) const WC_RECV_RDMA_WITH_IMM: c_int = 129;

pub(super) const EVENT_CQ_ERR: c_int = 0;
pub(super) const EVENT_QP_FATAL: c_int = 1;
pub(super) const EVENT_QP_REQ_ERR: c_int = 2;
pub(super) const EVENT_QP_ACCESS_ERR: c_int = 3;
pub(super) const EVENT_COMM_EST: c_int = 4;
pub(super) const EVENT_SQ_DRAINED: c_int = 5;
pub(super) const EVENT_PATH_MIG: c_int = 6;
pub(super) const EVENT_PATH_MIG_ERR: c_int = 7;
pub(super) const EVENT_DEVICE_FATAL: c_int = 8;
pub(super) const EVENT_PORT_ACTIVE: c_int = 9;
pub(super) const EVENT_PORT_ERR: c_int = 10;
pub(super) const EVENT_LID_CHANGE: c_int = 11;
pub(super) const EVENT_PKEY_CHANGE: c_int = 12;
pub(super) const EVENT_SM_CHANGE: c_int = 13;
pub(super) const EVENT_SRQ_ERR: c_int = 14;
pub(super) const EVENT_SRQ_LIMIT_REACHED: c_int = 15;
pub(super) const EVENT_QP_LAST_WQE_REACHED: c_int = 16;
pub(super) const EVENT_CLIENT_REREGISTER: c_int = 17;
pub(super) const EVENT_GID_CHANGE: c_int = 18;
