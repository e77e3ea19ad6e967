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

// Replace replaces every occurrence of a text in files, byte for byte and from left to right, and keeps mode and
// owner. A symbolic link is followed and stays a link; a hard link becomes a file of its own. Files may be of any
// size: they are streamed. A file without the text is left untouched, which is no error.
//
// No file is changed before the new content of all of them is on disk, so a full disk changes nothing. A missing
// file is KindNotFound, anything but a regular file and an empty Old are KindInvalid.
func (f *Files) Replace(wanted map[string]Replacement) error {
	targets := make([]string, 0, len(wanted))
	seen := make(map[string]bool, len(wanted))
	keys := slices.Sorted(maps.Keys(wanted))
	for _, path := range keys {
		abs, err := f.resolve(path)
		if err != nil {
			return err
		}
		if wanted[path].Old == "" {
			return invalid(abs, "old: must not be empty")
		}
		target, err := followAll(abs)
		if err != nil {
			return classify(abs, err)
		}
		if seen[target] {
			return invalid(abs, "names the same file as another path of the request")
		}
		if info, err := os.Stat(target); err != nil {
			return classify(abs, err)
		} else if !info.Mode().IsRegular() {
			return invalid(abs, "is not a regular file")
		}
		targets, seen[target] = append(targets, target), true
	}

	var edits []edit
	defer func() {
		for _, e := range edits {
			e.staged.discard()
		}
	}()
	for i, path := range keys {
		e, changed, err := prepareEdit(targets[i], wanted[path])
		if err != nil {
			return classify(targets[i], err)
		}
		if changed {
			edits = append(edits, e)
		}
	}
	for _, e := range edits {
		if err := e.staged.commit(e.attributes); err != nil {
			return err
		}
	}
	return nil
}

// edit is the new content of a file and the attributes of the old one.
type edit struct {
	staged     *staged
	attributes attributes
}

// prepareEdit writes the new content of target beside it. changed is false when the text does not occur.
func prepareEdit(target string, r Replacement) (e edit, changed bool, err error) {
	in, err := os.OpenFile(target, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return edit{}, false, err
	}
	defer in.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(in.Fd()), &st); err != nil {
		return edit{}, false, err
	}
	out, err := stage(target, filepath.Dir(target), "replace")
	if err != nil {
		return edit{}, false, err
	}
	buffered := bufio.NewWriterSize(out.file, 256<<10)
	changed, err = replaceStream(buffered, in, []byte(r.Old), []byte(r.New))
	if err == nil {
		err = buffered.Flush()
	}
	if err == nil && changed {
		err = out.file.Sync()
	}
	if err != nil || !changed {
		out.discard()
		return edit{}, false, err
	}
	attrs := attributes{uid: int(st.Uid), gid: int(st.Gid), mode: st.Mode & 0o7777, setMode: true}
	return edit{out, attrs}, true, nil
}

// replaceStream copies in to out with every old replaced, in memory bounded by the length of old. found tells
// whether there was any.
func replaceStream(out io.Writer, in io.Reader, old, replacement []byte) (found bool, err error) {
	const chunk = 256 << 10
	buf := make([]byte, 0, chunk+2*len(old))
	for {
		n, readErr := io.ReadFull(in, buf[len(buf):cap(buf)])
		buf = buf[:len(buf)+n]
		ended := errors.Is(readErr, io.EOF) || errors.Is(readErr, io.ErrUnexpectedEOF)
		if readErr != nil && !ended {
			return found, readErr
		}
		rest := buf
		for {
			i := bytes.Index(rest, old)
			if i < 0 {
				break
			}
			found = true
			if _, err := out.Write(rest[:i]); err != nil {
				return found, err
			}
			if _, err := out.Write(replacement); err != nil {
				return found, err
			}
			rest = rest[i+len(old):]
		}
		// The end of what is here may be the start of an occurrence that the next chunk completes.
		keep := min(len(old)-1, len(rest))
		if ended {
			keep = 0
		}
		if _, err := out.Write(rest[:len(rest)-keep]); err != nil {
			return found, err
		}
		if ended {
			return found, nil
		}
		buf = buf[:copy(buf, rest[len(rest)-keep:])]
	}
}
