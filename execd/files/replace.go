package files

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// Replacement is a text and what to put in its place.
type Replacement struct {
	Old string // must not be empty
	New string
}

// Replace replaces every occurrence of a text in files, byte for byte and from left to right, and
// keeps mode, owner and ACL. A symbolic link is followed and stays a link; a hard link becomes a
// file of its own, unless it is written in place. Files may be of any size: they are streamed.
// Replace leaves a file without the text untouched and succeeds.
//
// No file is changed before the new content of all of them is on disk, so a full disk changes
// nothing. A missing file is KindNotFound, anything but a regular file and an empty Old are
// KindInvalid. A file that something else has changed since it was read is KindConflict: its new
// content would undo that change.
func (f *Files) Replace(wanted map[string]Replacement) error {
	_, err := f.ReplaceAndCount(wanted)
	return err
}

// ReplaceAndCount is [Files.Replace], and returns how many occurrences there were under each path.
func (f *Files) ReplaceAndCount(wanted map[string]Replacement) (map[string]int, error) {
	targets := make([]string, 0, len(wanted))
	seen := make(map[string]bool, len(wanted))
	keys := slices.Sorted(maps.Keys(wanted))
	for _, path := range keys {
		abs, err := f.resolve(path)
		if err != nil {
			return nil, err
		}
		if wanted[path].Old == "" {
			return nil, invalid(abs, "old: must not be empty")
		}
		target, err := followAll(abs)
		if err != nil {
			return nil, classify(abs, err)
		}
		if seen[target] {
			return nil, invalid(abs, "names the same file as another path of the request")
		}
		if info, err := os.Stat(target); err != nil {
			return nil, classify(abs, err)
		} else if !info.Mode().IsRegular() {
			return nil, invalid(abs, "is not a regular file")
		}
		targets, seen[target] = append(targets, target), true
	}

	var edits []*staged
	defer func() {
		for _, e := range edits {
			e.discard()
		}
	}()
	counts := make(map[string]int, len(keys))
	for i, path := range keys {
		e, count, err := f.prepareEdit(targets[i], wanted[path])
		if err != nil {
			return nil, classify(targets[i], err)
		}
		if counts[path] = count; count > 0 {
			edits = append(edits, e)
		}
	}
	for _, e := range edits { // commit looks again, when it is too late for those before
		if err := e.unchanged(); err != nil {
			return nil, err
		}
	}
	for _, e := range edits {
		if err := e.commit(unasked); err != nil {
			return nil, err
		}
	}
	return counts, nil
}

// prepareEdit writes the new content of target beside it. There is none when count, the number of
// occurrences, is 0.
func (f *Files) prepareEdit(target string, r Replacement) (out *staged, count int, err error) {
	in, err := os.OpenFile(target, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, 0, err
	}
	defer in.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &st); err != nil {
		return nil, 0, err
	}
	out, err = f.stage(target, filepath.Dir(target), "replace")
	if err != nil {
		return nil, 0, err
	}
	out.read = &st
	buffered := bufio.NewWriterSize(out.file, 256<<10)
	count, err = replaceStream(buffered, in, []byte(r.Old), []byte(r.New))
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil && count > 0 {
		err = out.file.Sync()
	}
	if err != nil || count == 0 {
		out.discard()
		return nil, 0, err
	}
	return out, count, nil
}

// replaceStream copies in to out with every old replaced, in memory bounded by the length of old.
// It returns how many there were.
func replaceStream(out io.Writer, in io.Reader, old, replacement []byte) (count int, err error) {
	const chunk = 256 << 10
	buf := make([]byte, 0, chunk+2*len(old))
	for {
		n, readErr := io.ReadFull(in, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		ended := errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF)
		if readErr != nil && !ended {
			return count, readErr
		}
		rest := buf
		for {
			i := bytes.Index(rest, old)
			if i < 0 {
				break
			}
			count++
			if _, err := out.Write(rest[:i]); err != nil {
				return count, err
			}
			if _, err := out.Write(replacement); err != nil {
				return count, err
			}
			rest = rest[i+len(old):]
		}
		// The end of what is here may be the start of an occurrence that the next chunk completes.
		keep := min(len(old)-1, len(rest))
		if ended {
			keep = 0
		}
		if _, err := out.Write(rest[:len(rest)-keep]); err != nil {
			return count, err
		}
		if ended {
			return count, nil
		}
		buf = buf[:copy(buf, rest[len(rest)-keep:])]
	}
}
