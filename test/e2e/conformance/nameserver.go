package conformance

// NameServer is a program of Python that answers every question for a name of its table with the
// address there. The table is its arguments, each NAME=ADDRESS.
const NameServer = `
import socket, sys
table = dict(pair.split("=") for pair in sys.argv[1:])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); sock.bind(("", 53))
while True:
    query, peer = sock.recvfrom(4096)
    labels, at = [], 12
    while query[at]:
        labels.append(query[at+1:at+1+query[at]].decode().lower()); at += 1 + query[at]
    question, kind = query[12:at+5], query[at+2]
    address = table.get(".".join(labels))
    found = address and kind == 1
    flags = b"\x81\x80" if address else b"\x81\x83"
    answer = b"\xc0\x0c\x00\x01\x00\x01\x00\x00\x00\x05\x00\x04" + socket.inet_aton(address) if found else b""
    sock.sendto(query[:2] + flags + b"\x00\x01" + (b"\x00\x01" if found else b"\x00\x00") + b"\x00\x00\x00\x00" + question + answer, peer)`
