// Probe is the program inside the suite's images: it does one small thing, so that a test can see
// what an engine did.
package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	if len(os.Args) < 2 {
		fatal("usage: probe sleep|again|trap|stubborn|exit|later|print|bytes|lines|env|cat|write|copy|mkdir|fill|occupy|eat|fork|count|hold|receive|interfaces|sockets|hoard|take|tree|prune|digest|mode|journal|numbers|many|mutate|serve|echo|remember [argument...]")
	}
	args := os.Args[2:]
	switch os.Args[1] {
	case "sleep":
		<-onTerm()
	case "trap":
		term := onTerm()
		fmt.Println("ready")
		<-term
		fmt.Println("terminated")
		os.Exit(7)
	case "stubborn":
		term := onTerm()
		fmt.Println("ready")
		for range term { // taken note of, and no more
		}
	case "exit":
		os.Exit(number(args[0]))
	case "later": // ends with the second number after the first in milliseconds
		time.Sleep(time.Duration(number(args[0])) * time.Millisecond)
		exit(number(args[1]))
	case "print": // out:WORD and err:WORD, one line each
		for _, arg := range args {
			stream, word, _ := strings.Cut(arg, ":")
			if stream == "err" {
				fmt.Fprintln(os.Stderr, word)
			} else {
				fmt.Println(word)
			}
		}
	case "bytes": // every byte there is, and a newline
		all := make([]byte, 256)
		for i := range all {
			all[i] = byte(i)
		}
		_, err := os.Stdout.Write(append(all, '\n'))
		check(err)
	case "lines":
		for i := range number(args[0]) {
			fmt.Println("line", i+1)
		}
	case "env":
		for _, name := range args {
			fmt.Println(name + "=" + os.Getenv(name))
		}
	case "cat":
		for _, path := range args {
			content, err := os.ReadFile(path)
			check(err)
			fmt.Print(string(content))
		}
	case "copy": // a directory into another one, which exists
		check(os.CopyFS(args[1], os.DirFS(args[0])))
	case "mkdir": // and says what the kernel does
		err := os.Mkdir(args[0], 0o755)
		fmt.Println(errors.Unwrap(err))
	case "write":
		check(os.WriteFile(args[0], []byte(args[1]), 0o644))
	case "again": // counts its starts in a file that it syncs, and stays
		again(args[0])
		<-onTerm()
	case "fill": // a file with so many MiB, or as many as there is room for
		fmt.Println(fill(args[0], number(args[1])))
	case "occupy": // the same, and stays
		fmt.Println(fill(args[0], number(args[1])))
		time.Sleep(time.Hour)
	case "eat":
		eat(number(args[0]))
	case "fork":
		fork(number(args[0]))
	case "count":
		for i := 0; ; i++ {
			fmt.Println(i)
			time.Sleep(10 * time.Millisecond)
		}
	case "hold":
		hold()
	case "receive":
		connection, err := net.Dial("tcp", args[0])
		check(err)
		said, err := io.ReadAll(connection)
		check(err)
		fmt.Print(string(said))
	case "interfaces":
		// Interfaces that tunnel modules put into every namespace are down.
		interfaces, err := net.Interfaces()
		check(err)
		for _, i := range interfaces {
			if i.Flags&net.FlagUp != 0 {
				fmt.Println(i.Name)
			}
		}
	case "sockets":
		for _, arg := range args {
			fmt.Println(arg, openSocket(arg))
		}
	case "hoard": // so many MiB of answers that it does not read
		fmt.Println("sockets", hoard(number(args[0])))
		<-onTerm()
	case "take":
		runtime.LockOSThread() // signals wait for a thread
		take(args[0], number(args[1]))
	case "tree": // a directory with files of every kind, in a container that stays
		tree(args[0])
		fmt.Println("made")
		<-onTerm()
	case "prune": // changes that directory
		prune(args[0])
		fmt.Println("made")
		<-onTerm()
	case "digest": // of a directory
		fmt.Print(digest(args[0]))
	case "change": // the directory, so many times at random, given a seed
		check(os.MkdirAll(args[0], 0o755))
		changes(args[0], args[1], number(args[2]))
	case "mode":
		info, err := os.Stat(args[0])
		check(err)
		fmt.Println(info.Mode())
	case "journal":
		journal(args[0], args[1])
	case "numbers": // how many a journal has
		fmt.Println(count(args[0]))
	case "many": // so many files of so many bytes in a directory, in a container that stays
		fmt.Println("began")
		many(args[0], number(args[1]), number(args[2]))
		fmt.Println("made")
		if len(args) > 3 { // and when the one file is there, another one of 1 MiB
			awaitFile(args[3])
			fill(args[4], 1)
			fmt.Println("more")
		}
		<-onTerm()
	case "mutate": // at each order so many random changes
		mutate(args[0], args[1], number(args[2]))
	case "serve":
		serve(args[0])
	case "echo":
		echo(args[0])
	case "remember": // a file, and so many MiB
		remember(args[0], number(args[1]))
	default:
		fatal("unknown word " + os.Args[1])
	}
}

// exit also writes the exit code to the file that the engine has given for it, if it has.
func exit(code int) {
	if fd := os.Getenv("EXECD_EXIT_FD"); fd != "" {
		_, err := fmt.Fprintln(os.NewFile(uintptr(number(fd)), "exit file"), code)
		check(err)
	}
	os.Exit(code)
}

// onTerm is needed because the kernel does not deliver to a first process the signals that it has
// no handler for.
func onTerm() <-chan os.Signal {
	term := make(chan os.Signal, 1)
	signal.Notify(term, syscall.SIGTERM)
	return term
}

// again adds one to the number in a file, and prints it once it is on the disk.
func again(path string) {
	content, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		fatal(err.Error())
	}
	starts := 1
	if len(content) > 0 {
		starts += number(string(content))
	}
	file, err := os.Create(path)
	check(err)
	_, err = fmt.Fprint(file, starts)
	check(errors.Join(err, file.Sync(), file.Close()))
	fmt.Println("start", starts)
}

// fill returns how many MiB it has written.
func fill(path string, mebibytes int) int {
	file, err := os.Create(path)
	check(err)
	piece := bytes.Repeat([]byte("x"), 1<<20)
	for written := range mebibytes {
		if _, err := file.Write(piece); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				check(err)
			}
			return written
		}
	}
	return mebibytes
}

// eat touches every page: memory that is not touched is not counted.
func eat(mebibytes int) {
	var eaten [][]byte
	for range mebibytes {
		piece := make([]byte, 1<<20)
		for i := 0; i < len(piece); i += 4096 {
			piece[i] = 1
		}
		eaten = append(eaten, piece)
	}
	fmt.Println("ate", len(eaten))
}

func fork(wanted int) {
	started := 0
	for ; started < wanted; started++ {
		if err := exec.Command(os.Args[0], "sleep").Start(); err != nil {
			fmt.Println("refused:", err)
			break
		}
	}
	fmt.Println("forked", started)
}

// hold counts until it holds the kernel's lock of the pipe at the standard output, with something
// in the pipe: splice(2) waits for a socket that is full. Then nothing else can be done with the
// pipe until the process is killed.
func hold() {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	check(err)
	check(syscall.SetNonblock(pair[0], true))
	for err == nil {
		_, err = syscall.Write(pair[0], make([]byte, 4096))
	}
	check(syscall.SetNonblock(pair[0], false))
	go func() {
		_, err := syscall.Splice(1, nil, pair[0], nil, 1<<16, 0)
		fatal(fmt.Sprint("splice: ", err))
	}()
	for i := 0; ; i++ { // what reads the pipe may be faster
		fmt.Println(i)
		time.Sleep(time.Millisecond)
	}
}

func serve(port string) {
	listener, err := net.Listen("tcp", ":"+port)
	check(err)
	for {
		connection, err := listener.Accept()
		check(err)
		_, _ = fmt.Fprint(connection, "hello from "+port)
		_ = connection.Close()
	}
}

// echo sends back what it gets.
func echo(port string) {
	listener, err := net.Listen("tcp", ":"+port)
	check(err)
	fmt.Println("listening")
	for {
		connection, err := listener.Accept()
		check(err)
		go func() {
			_, _ = io.Copy(connection, connection)
			_ = connection.Close()
		}()
	}
}

func number(s string) int {
	n, err := strconv.Atoi(s)
	check(err)
	return n
}

func check(err error) {
	if err != nil {
		fatal(err.Error())
	}
}

func fatal(message string) {
	fmt.Fprintln(os.Stderr, message)
	os.Exit(1)
}

// openSocket returns the number of the error of socket(2) with the numbers FAMILY:TYPE:PROTOCOL or,
// after "pair:", of socketpair(2).
func openSocket(numbers string) int {
	call := uintptr(syscall.SYS_SOCKET)
	numbers, isPair := strings.CutPrefix(numbers, "pair:")
	if isPair {
		call = syscall.SYS_SOCKETPAIR
	}
	var arguments [3]uintptr
	for i, text := range strings.SplitN(numbers, ":", len(arguments)) {
		value, err := strconv.ParseUint(text, 0, 64)
		check(err)
		arguments[i] = uintptr(value)
	}
	var pair [2]int32
	_, _, errno := syscall.RawSyscall6(call, arguments[0], arguments[1], arguments[2], uintptr(unsafe.Pointer(&pair)), 0, 0)
	return int(errno) // the sockets are closed with the process
}

// hoard has the kernel answer requests of netlink with so many MiB, and returns how many sockets
// that has taken.
func hoard(mebibytes int) int {
	const length = 100 << 10
	request := make([]byte, length)
	binary.NativeEndian.PutUint32(request, length)     // of the message
	binary.NativeEndian.PutUint16(request[4:], 0xffff) // a type that there is not: the answer repeats the request
	binary.NativeEndian.PutUint16(request[6:], syscall.NLM_F_REQUEST)
	fd, sockets := -1, 0
	for answers := range mebibytes * 10 {
		if answers%2 == 0 { // as many as one holds by default
			var err error
			fd, err = syscall.Socket(syscall.AF_NETLINK, syscall.SOCK_RAW, syscall.NETLINK_ROUTE)
			check(err)
			sockets++
		}
		check(syscall.Sendto(fd, request, 0, &syscall.SockaddrNetlink{Family: syscall.AF_NETLINK}))
	}
	return sockets
}
