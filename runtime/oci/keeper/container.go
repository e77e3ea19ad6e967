package keeper

import (
	"errors"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

const (
	// drainBytes is how much of one container's output is moved before it is another one's turn.
	drainBytes = 256 << 10
	// pipeBytes is more than a pipe can hold, unless the administrator has raised the limit (pipe-max-size).
	pipeBytes = 16 << 20
)

// container is a container that the keeper watches.
type container struct {
	id, exitFile, endFile string

	// launched is closed when the launch is over. Then process and failure are what came of it; detach has happened or follows.
	launched chan struct{}
	process  Process
	failure  *RuntimeError

	mu    sync.Mutex // also for moving the output
	fifo  int        // -1 when nothing moves it any more
	log   logFile
	pidfd int  // of a container that is not a child of this process, -1 otherwise
	over  bool // it has ended, or is forgotten
	end   *End // its end is recorded
}

func newContainer(l *Launch) *container {
	limit := l.LogBytes
	if limit <= 0 {
		limit = engine.DefaultLogBytes
	}
	return &container{
		id: l.ID, exitFile: l.ExitFile, endFile: l.EndFile, launched: make(chan struct{}),
		fifo: -1, pidfd: -1, log: newLogFile(l.Log, limit),
	}
}

// drain moves some output to the log.
func (c *container) drain() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fifo >= 0 {
		c.take(drainBytes)
	}
}

func (c *container) take(max int64) {
	// An error has no one to go to: the log stays shorter, and what follows is tried again.
	_, _ = c.log.take(c.fifo, max)
}

// release closes everything, and moves what the FIFO has left to the log before.
func (c *container) release(p *poller) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fifo >= 0 {
		c.take(pipeBytes)
	}
	p.remove(c.fifo)
	p.remove(c.pidfd)
	closeAll([]int{c.fifo, c.pidfd})
	c.fifo, c.pidfd = -1, -1
	c.log.close()
}

// finish records the end of a container, once.
func (k *keeper) finish(c *container, end End) {
	<-c.launched
	c.mu.Lock()
	first := !c.over
	c.over = true
	c.mu.Unlock()
	if !first || c.failure != nil {
		return
	}
	k.enter()
	defer k.exit()
	c.release(k.poller)
	if err := writeEnd(c.endFile, end); err != nil {
		k.report("container " + c.id + ": " + err.Error())
	}
	c.mu.Lock()
	c.end = &end
	c.mu.Unlock()
	k.broadcast(response{Container: c.id, End: &end})
}

// ended returns how the container ended, nil as long as that is not recorded.
func (c *container) ended() *End {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.end
}

// adopt watches a container that another keeper has started. files are its pidfd and its FIFO, if the client has them.
func (k *keeper) adopt(l *Launch, p Process, files []int) (*container, error) {
	c := newContainer(l)
	c.process = p
	close(c.launched)
	k.mu.Lock()
	if known := k.containers[l.ID]; known != nil {
		k.mu.Unlock()
		closeAll(files)
		return known, nil
	}
	k.containers[l.ID] = c
	k.mu.Unlock()

	pidfd, fifo := -1, -1
	if len(files) == messageFiles {
		pidfd, fifo = files[0], files[1]
	} else {
		closeAll(files)
	}
	if end, err := ReadEnd(l.EndFile); err == nil {
		closeAll([]int{pidfd, fifo})
		c.mu.Lock()
		c.over, c.end = true, &end
		c.mu.Unlock()
		return c, nil
	}
	if fifo < 0 {
		var err error
		if fifo, err = openFIFO(l.Output, unix.O_NONBLOCK); err != nil {
			// There is still its end to record.
			k.report("container " + l.ID + ": " + err.Error())
			fifo = -1
		}
	}
	if pidfd < 0 {
		var err error
		if pidfd, err = p.Open(); err != nil && !errors.Is(err, ErrGone) {
			closeAll([]int{fifo})
			k.drop(c)
			return nil, err
		}
	}
	c.mu.Lock()
	c.fifo, c.pidfd = fifo, pidfd
	c.mu.Unlock()
	k.poller.add(fifo, c.drain)
	if pidfd < 0 {
		go k.finish(c, exitFileEnd(c.exitFile, time.Now()))
		return c, nil
	}
	k.poller.add(pidfd, func() { k.adoptedEnded(c, pidfd) })
	return c, nil
}

// adoptedEnded is called when the process of a pidfd has ended. Its parent is another process, which may or may not have waited for it.
func (k *keeper) adoptedEnded(c *container, pidfd int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.pidfd != pidfd {
		return // released meanwhile
	}
	k.poller.remove(pidfd)
	go k.finish(c, k.adoptedEnd(c, pidfd))
}

func (k *keeper) adoptedEnd(c *container, pidfd int) End {
	now := time.Now()
	// Either the status is there because the process was waited for, or it is a zombie that has it; between the two looks it can be waited
	// for.
	for range 2 {
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		if err := unix.IoctlPidfdInfo(pidfd, &info); err == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
			return newEnd(unix.WaitStatus(info.Exit_code), now)
		}
		if found, err := readStat(c.process.PID); k.seesStatus && err == nil && found.start == c.process.StartTime && found.ended() {
			return newEnd(found.status, now)
		}
	}
	return exitFileEnd(c.exitFile, now)
}

// drop removes a container from those that are watched.
func (k *keeper) drop(c *container) {
	k.mu.Lock()
	if k.containers[c.id] == c {
		delete(k.containers, c.id)
	}
	k.mu.Unlock()
}

// forget stops watching a container. One that is being launched is waited for, by everything that asks for it.
func (k *keeper) forget(id string) {
	k.mu.Lock()
	c := k.containers[id]
	k.mu.Unlock()
	if c == nil {
		return
	}
	<-c.launched
	k.drop(c)
	c.mu.Lock()
	first := !c.over
	c.over = true
	c.mu.Unlock()
	if first {
		c.release(k.poller)
	}
}

// openFIFO opens a FIFO for reading and writing, so that it has both ends whatever other process is there.
func openFIFO(path string, flags int) (int, error) {
	fd, err := unix.Open(path, flags|unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	var info unix.Stat_t
	if err = unix.Fstat(fd, &info); err == nil && info.Mode&unix.S_IFMT != unix.S_IFIFO {
		err = errors.New("not a FIFO")
	}
	if err != nil {
		unix.Close(fd)
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}
