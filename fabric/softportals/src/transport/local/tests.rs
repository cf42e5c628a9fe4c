use super::{
    Errno, InterfaceLocation, LocalMedium, PacketMedium, PhysicalId, PidReservation, SoftPacket,
};

fn place(test: &str) -> InterfaceLocation {
    InterfaceLocation {
        network: format!("test-{test}-{}", std::process::id()),
        rail: 0,
        kind: 0,
    }
}

fn port(place: &InterfaceLocation, pid: u32) -> LocalMedium {
    LocalMedium::open(place.clone(), PhysicalId { nid: 1, pid }).expect("a free address")
}

fn packet(payload: &[u8]) -> SoftPacket<'_> {
    SoftPacket {
        head: b"headhead",
        payload,
    }
}

fn receive(port: &mut LocalMedium) -> Option<(PhysicalId, Vec<u8>)> {
    let mut into = Vec::new();
    port.drain_socket();
    port.receive(0, &mut into).map(|from| (from, into))
}

#[test]
fn packets_arrive_in_order_with_their_sender() {
    let place = place("order");
    let (mut a, mut b) = (port(&place, 1), port(&place, 2));
    for byte in 0..5 {
        assert!(a.has_room(b.address));
        a.send(0, b.address, packet(&[byte]));
    }
    for byte in 0..5 {
        let (from, bytes) = receive(&mut b).expect("a packet");
        assert_eq!(from, a.address);
        assert_eq!(bytes, [b"headhead", &[byte][..]].concat());
    }
    assert_eq!(receive(&mut b), None);
}

#[test]
fn what_a_peer_sent_before_it_ended_comes_before_its_end() {
    let place = place("end");
    let (mut a, mut b) = (port(&place, 1), port(&place, 2));
    let gone = b.address;
    for byte in 0..2 {
        assert!(b.has_room(a.address));
        b.send(0, a.address, packet(&[byte]));
    }
    assert!(a.has_room(gone));
    drop(b);
    a.probe(0, gone);
    for byte in 0..2 {
        assert_eq!(a.next_lost(), None);
        let (_, bytes) = receive(&mut a).expect("a packet");
        assert_eq!(bytes[8..], [byte]);
    }
    assert_eq!(a.next_lost(), Some(gone));
    assert_eq!(a.next_lost(), None);
}

#[test]
fn a_peer_that_does_not_read_is_full_and_loses_nothing() {
    let place = place("full");
    let (mut a, mut b) = (port(&place, 1), port(&place, 2));
    let mut sent = 0_u32;
    while a.has_room(b.address) {
        a.send(0, b.address, packet(&sent.to_le_bytes()));
        sent += 1;
    }
    for number in 0..sent {
        let (_, bytes) = receive(&mut b).expect("a packet");
        assert_eq!(bytes[8..], number.to_le_bytes());
    }
    assert!(a.has_room(b.address));
    assert_eq!(a.next_lost(), None);
}

#[test]
fn an_armed_port_is_rung_and_others_are_not() {
    let place = place("bell");
    let (mut a, mut b) = (port(&place, 1), port(&place, 2));
    assert!(a.has_room(b.address));
    a.send(0, b.address, packet(b"first"));
    assert!(receive(&mut b).is_some());
    a.send(0, b.address, packet(b"x"));
    assert_eq!(b.take_hello(), Ok(false), "no peer had asked");
    assert!(b.arm(), "something is there already");
    assert!(receive(&mut b).is_some() && !b.arm());
    a.send(0, b.address, packet(b"y"));
    a.send(0, b.address, packet(b"z"));
    assert_eq!((b.take_hello(), b.take_hello()), (Ok(true), Ok(false)));
}

#[test]
fn an_address_is_taken_once_and_free_after_its_end() {
    let place = place("taken");
    let first = (
        port(&place, 1),
        PidReservation::take(&place, 1).expect("free"),
    );
    let again = LocalMedium::open(place.clone(), first.0.address);
    assert_eq!(again.err(), Some(Errno::ADDRINUSE));
    assert_eq!(
        PidReservation::take(&place, 1).err(),
        Some(Errno::ADDRINUSE)
    );
    drop(first);
    port(&place, 1);
    PidReservation::take(&place, 1).expect("free again");
}

#[test]
fn a_process_that_never_started_or_has_ended_is_lost() {
    let place = place("lost");
    let mut a = port(&place, 1);
    let mut b = port(&place, 2);
    let (gone, never) = (b.address, PhysicalId { nid: 1, pid: 3 });
    assert!(a.has_room(gone));
    a.send(0, gone, packet(b"taken"));
    assert!(receive(&mut b).is_some());
    drop(b);
    a.send(0, gone, packet(b"for nobody"));
    assert_eq!(a.next_lost(), Some(gone), "its end has armed the ring");
    assert!(!a.has_room(never));
    assert_eq!(a.next_lost(), Some(never));
}

#[test]
fn a_process_that_has_left_is_lost_before_anything_is_written_for_its_successor() {
    let place = place("left");
    let (mut a, mut b) = (port(&place, 1), port(&place, 2));
    let there = b.address;
    assert!(a.has_room(there));
    a.send(0, there, packet(b"taken"));
    assert!(receive(&mut b).is_some());
    drop(b);
    let mut b = port(&place, 2);
    assert!(!a.has_room(there), "no process would read it");
    assert_eq!(a.next_lost(), Some(there));
    assert!(a.has_room(there));
    a.send(0, there, packet(b"new"));
    let (_, bytes) = receive(&mut b).expect("what was meant for it");
    assert_eq!(&bytes[8..], b"new");
    assert_eq!(a.next_lost(), None);
}

#[test]
fn a_process_that_was_absent_is_lost_before_its_first_packet_is_taken() {
    let place = place("early");
    let mut a = port(&place, 1);
    let there = PhysicalId { nid: 1, pid: 2 };
    assert!(!a.has_room(there), "no process is there");
    let mut b = port(&place, 2);
    assert!(b.has_room(a.address));
    b.send(0, a.address, packet(b"first"));
    assert_eq!(a.next_lost(), Some(there));
    assert!(receive(&mut a).is_some());
    assert!(a.has_room(there));
    assert_eq!(a.next_lost(), None);
}

#[test]
fn the_last_packet_of_an_ended_process_is_taken_before_the_process_is_lost() {
    let place = place("late");
    let (mut a, mut b) = (port(&place, 1), port(&place, 2));
    let there = b.address;
    assert!(b.has_room(a.address));
    b.send(0, a.address, packet(b"last"));
    drop(b);
    assert!(!a.has_room(there), "no process is there");
    assert_eq!(a.next_lost(), None);
    assert!(receive(&mut a).is_some());
    assert_eq!(a.next_lost(), Some(there));
}

#[test]
fn a_process_that_ends_without_reading_a_ring_has_left_the_ring() {
    let place = place("unread");
    let (mut a, b) = (port(&place, 1), port(&place, 2));
    let there = b.address;
    assert!(a.has_room(there));
    drop(b);
    assert!(!a.has_room(there));
    assert_eq!(a.next_lost(), Some(there));
}

#[test]
fn a_successor_is_another_peer() {
    let place = place("again");
    let (mut a, mut b) = (port(&place, 1), port(&place, 2));
    let there = b.address;
    assert!(a.has_room(there) && b.has_room(a.address));
    b.send(0, a.address, packet(b"old"));
    assert!(receive(&mut a).is_some());
    drop(b);
    let mut b = port(&place, 2);
    assert!(b.has_room(a.address));
    b.send(0, a.address, packet(b"new"));
    assert_eq!(receive(&mut a), None, "not before that is known");
    assert!(!a.has_room(there), "it would be lost with the rest");
    assert_eq!(
        a.next_lost(),
        Some(there),
        "what was in flight to the first is lost"
    );
    assert!(receive(&mut a).is_some());
    assert!(a.has_room(there));
    assert_eq!(a.next_lost(), None);
}
