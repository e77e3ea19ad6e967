package main

import (
	"fmt"
	"io"
	"net"
	"os"
)

// remember answers every connection to TCP port 8080 with how many there were: as a number in its
// memory, as the lines of a file, and as those of a file whose name was removed. Beside them is
// what comes back over a connection within the container that it has had from the start.
func remember(path string, mebibytes int) {
	inner, back := loop()
	listener, err := net.Listen("tcp", ":8080")
	check(err)
	named, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
	check(err)
	unnamed, err := os.Create(path + ".removed")
	check(err)
	check(os.Remove(path + ".removed"))
	eat(mebibytes)
	fmt.Println("ready")
	for count := 1; ; count++ {
		connection, err := listener.Accept()
		check(err)
		echoed := make([]byte, 1)
		_, err = fmt.Fprint(named, "x")
		check(err)
		_, err = fmt.Fprint(unnamed, "x")
		check(err)
		_, err = inner.Write([]byte("y"))
		check(err)
		_, err = io.ReadFull(back, echoed)
		check(err)
		_, _ = fmt.Fprintf(connection, "%d %d %d %s", count, size(named), size(unnamed), echoed)
		_ = connection.Close()
	}
}

// loop returns the two ends of a connection of the container with itself.
func loop() (one, other net.Conn) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	check(err)
	one, err = net.Dial("tcp", listener.Addr().String())
	check(err)
	other, err = listener.Accept()
	check(err)
	check(listener.Close())
	return one, other
}

func size(file *os.File) int64 {
	info, err := file.Stat()
	check(err)
	return info.Size()
}
