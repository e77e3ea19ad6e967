package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sandbox.internal/bench/job"
	"sandbox.internal/bench/pattern"
)

// jobs are what this program measures in itself.
func jobs() map[string]job.Job {
	return map[string]job.Job{
		"spawn": func([]string) ([]float64,
			error) {
			return timed(func() error { return bash("true").Run() })
		},
		"first-byte": func([]string) ([]float64, error) { return firstByte() },
		"stop":       func([]string) ([]float64, error) { return stopped() },
		"append":     func(words []string) ([]float64, error) { return appended(words[0]) },
		"walk":       func(words []string) ([]float64, error) { return walked(words[0], words[1]) },
		"scan": func(words []string) ([]float64,
			error) {
			return scanned(words[0], words[1])
		},
		"pipe":   func(words []string) ([]float64, error) { return piped(words[0], words[1]) },
		"timers": lateness,
	}
}

func bash(script string) *exec.Cmd { return exec.Command("bash", "-c", script) }

func since(began time.Time) float64 {
	return float64(time.Since(began)) / float64(
		time.Millisecond)
}

func timed(do func() error) ([]float64, error) {
	began := time.Now()
	err := do()
	return []float64{since(began)}, err
}

// firstByte is how long a process takes from its start until its first byte comes through a pipe.
func firstByte() ([]float64, error) {
	process := bash("echo x; exec sleep 60")
	out, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	took, err := timed(func() error {
		if err := process.Start(); err != nil {
			return err
		}
		_, err := io.ReadFull(out, make([]byte, 1))
		return err
	})
	process.Process.Kill()
	process.Wait() // killed on purpose
	return took, err
}

// stopped is how long it takes from SIGTERM until wait(2) reports the end of a process.
func stopped() ([]float64, error) {
	process := bash("echo x; exec sleep 60")
	out, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := process.Start(); err != nil {
		return nil, err
	}
	if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
		return nil, err
	}
	return timed(func() error {
		if err := process.Process.Signal(syscall.SIGTERM); err != nil {
			return err
		}
		process.Wait() // by the signal
		return nil
	})
}

// appended is the least that makes a record durable: 4 KiB appended, and on the disk when it
// returns.
func appended(path string) ([]float64, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer file.Close() // synced as it is written
	var block [4 << 10]byte
	return timed(func() error {
		if _, err := file.Write(block[:]); err != nil {
			return err
		}
		return syscall.Fdatasync(int(file.Fd()))
	})
}

// walked finds the .txt files below a directory, count of them, and reads the facts of each.
func walked(root, count string) ([]float64, error) {
	found := 0
	took, err := timed(func() error {
		return filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
			if err == nil && strings.HasSuffix(path, ".txt") {
				found++
				_, err = entry.Info()
			}
			return err
		})
	})
	if err == nil && strconv.Itoa(found) != count {
		err = fmt.Errorf("%d files were found of %s", found, count)
	}
	return took, err
}

// output runs a script and passes its whole output to read.
func output(script string, read func(io.Reader) error) ([]float64, error) {
	process := bash(script)
	out, err := process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	return timed(func() error {
		if err := process.Start(); err != nil {
			return err
		}
		return errors.Join(read(out), process.Wait())
	})
}

func scanned(script, lines string) ([]float64, error) {
	return output(script, func(out io.Reader) error {
		scanner, seen := bufio.NewScanner(out), 0
		for scanner.Scan() {
			seen++
		}
		if strconv.Itoa(seen) != lines {
			return fmt.Errorf("%d lines of %s", seen, lines)
		}
		return scanner.Err()
	})
}

func piped(script, size string) ([]float64, error) {
	bytes, err := strconv.ParseInt(size, 10, 64)
	if err != nil {
		return nil, err
	}
	expected := pattern.Lines(bytes)
	return output(script, func(out io.Reader) error {
		buffer := make([]byte, 64<<10)
		for {
			n, err := out.Read(buffer)
			if err := expected.Take(buffer[:n]); err != nil {
				return err
			}
			if errors.Is(err, io.EOF) {
				return expected.End()
			}
			if err != nil {
				return err
			}
		}
	})
}

// lateness is how late a timer of the standard library is for each of the moments, RFC 3339.
func lateness(moments []string) ([]float64, error) {
	late := make(chan float64, len(moments))
	for _, moment := range moments {
		due, err := time.Parse(time.RFC3339Nano, moment)
		if err != nil {
			return nil, err
		}
		time.AfterFunc(time.Until(due), func() { late <- since(due) })
	}
	took := make([]float64, len(moments))
	for i := range took {
		took[i] = <-late
	}
	return took, nil
}
