// Command escape tries, inside of a sandbox, what would lead out of it, and prints one line for
// each attempt: "refused NAME: ERROR" when the kernel refused it in the way that it should, else
// "OPEN NAME: ERROR", with "done" for ERROR when it succeeded. An attempt that succeeds does no
// harm: files are opened to write and not written.
//
// The argument is a [Target] in JSON.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Target is what there is outside of the sandbox.
type Target struct {
	Marker    string   // a file of the host
	PID       int      // a process of the host
	Abstract  string   // the name of an abstract socket on the host, without "@"
	Addresses []string // IP:PORT of TCP servers that the sandbox must not reach
}

// refusal is what most attempts must end with.
var refusal = []syscall.Errno{unix.EPERM, unix.EACCES, unix.EROFS, unix.ENOSYS}

var output sync.Mutex

// attempt prints how an attempt ended. expected are errors that are good besides those of refusal.
func attempt(name string, try func() error, expected ...syscall.Errno) {
	err := try()
	verdict, what := "OPEN", "done"
	if err != nil {
		what = strings.ReplaceAll(err.Error(), "\n", " ")
	}
	var number syscall.Errno
	if errors.As(err, &number) {
		what = unix.ErrnoName(number)
		if slices.Contains(refusal, number) || slices.Contains(expected, number) {
			verdict = "refused"
		}
	}
	var slow net.Error
	if errors.As(err, &slow) && slow.Timeout() && slices.Contains(expected, unix.ETIMEDOUT) {
		verdict, what = "refused", "timeout"
	}
	output.Lock()
	defer output.Unlock()
	fmt.Printf("%s %s: %s\n", verdict, name, what)
}

// call is a system call that must fail.
func call(name string, number uintptr, arguments ...uintptr) {
	all := append(arguments, 0, 0, 0, 0, 0, 0)
	attempt(name, func() error {
		if _, _, err := unix.Syscall6(number, all[0], all[1], all[2], all[3], all[4], all[5]); err != 0 {
			return err
		}
		return nil
	})
}

func pointer(text string) uintptr {
	bytes := append([]byte(text), 0)
	kept = append(kept, bytes)
	return uintptr(unsafe.Pointer(&bytes[0]))
}

var kept [][]byte // what pointers lead to

func main() {
	var target Target
	if err := json.Unmarshal([]byte(os.Args[1]), &target); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	descriptors(target) // before there are any of its own
	var dials sync.WaitGroup
	for _, address := range target.Addresses {
		dials.Go(func() { dial(address) })
	}
	// What some clouds have at this address gives the machine's credentials to whoever asks.
	dials.Go(func() { dial("169.254.169.254:80") })
	files()
	devices()
	mounts()
	namespaces()
	kernel()
	processes(target)
	sockets(target)
	dials.Wait()
	fmt.Println("end")
}
