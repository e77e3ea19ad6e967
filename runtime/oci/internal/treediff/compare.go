package treediff

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"

	"golang.org/x/sys/unix"

	"sandbox.internal/runtime/engine"
)

// States are the two states that are compared: the directories of their layers, lowest first.
type States struct{ From, To []string }

// Compare calls visit for each file that is not the same in both states, in the order of a walk: a
// directory comes before what is in it, whose names are sorted by their bytes. A directory that was
// removed stands for everything in it. An error of visit ends the comparison, and is returned.
func Compare(ctx context.Context, states States, visit func(engine.FileChange) error) error {
	return walkStates(ctx, states, func(w *walk, c change) error {
		kind, err := w.classify(c)
		if err != nil || kind == "" {
			return err
		}
		shown := c.to
		if shown == nil {
			shown = c.from
		}
		described := engine.FileChange{Path: "/" + c.name, Kind: kind, Type: typeOf(shown)}
		if !shown.isDirectory() {
			described.Size = shown.info.Size
		}
		return visit(described)
	})
}

func typeOf(f *file) engine.FileType {
	switch f.kind() {
	case unix.S_IFREG:
		return engine.TypeFile
	case unix.S_IFDIR:
		return engine.TypeDirectory
	case unix.S_IFLNK:
		return engine.TypeSymlink
	}
	return engine.TypeOther
}

// change is a name at which the states do not have the same file of a layer; both files may be
// equal nevertheless.
type change struct {
	name      string     // relative; empty for the root
	directory *directory // which the name is in; nil for the root, and once it may be closed
	from, to  *file      // nil where there is none
}

// walk is one comparison.
type walk struct {
	ctx    context.Context //nolint:containedctx // of the call
	layers *layers
	names  int // bytes in memory
	visit  func(*walk, change) error
}

func walkStates(ctx context.Context, states States, visit func(*walk, change) error) error {
	l, err := open(states.From, states.To)
	if err != nil {
		return err
	}
	defer l.close()
	w := &walk{ctx: ctx, layers: l, visit: visit}
	from, err := w.root(l.stack(states.From))
	if err != nil {
		return err
	}
	to, err := w.root(l.stack(states.To))
	if err != nil || to == nil || from != nil && from.same(to) {
		return err
	}
	if err := visit(w, change{from: from, to: to}); err != nil {
		return err
	}
	return w.directory("", l.stack(states.From), to.stack, 0)
}

// root returns the root of a state; nil for one without layers.
func (w *walk) root(stack []int) (*file, error) {
	if len(stack) == 0 {
		return nil, nil
	}
	f := &file{layer: stack[0], stack: stack}
	if err := unix.Fstat(int(w.layers.roots[stack[0]].Fd()), &f.info); err != nil {
		return nil, &os.PathError{Op: "stat", Path: "/", Err: err}
	}
	return f, nil
}

// directory compares what is in a directory, of which the states have different layers.
func (w *walk) directory(name string, from, to []int, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: files: %s...: directories nested deeper than %d levels", engine.ErrInvalid, shown(name), maxDepth)
	}
	f := &directory{layers: w.layers, name: name, open: map[int]int{}}
	defer f.close()
	before := w.names
	defer func() { w.names = before }()
	names, err := f.names(w.ctx, different(from, to), w.take)
	if err != nil {
		return err
	}
	for _, entry := range names {
		if err := w.ctx.Err(); err != nil {
			return err
		}
		if err := w.entry(f, entry, from, to, depth); err != nil {
			return err
		}
	}
	return nil
}

// different returns the layers of the two stacks without those at the bottom that both have.
func different(a, b []int) []int {
	same := 0
	for same < min(len(a), len(b)) && a[len(a)-1-same] == b[len(b)-1-same] {
		same++
	}
	list := slices.Concat(a[:len(a)-same], b[:len(b)-same])
	slices.Sort(list)
	return slices.Compact(list)
}

// take counts names that are in memory.
func (w *walk) take(bytes int) error {
	if w.names += bytes; w.names > maxNames {
		return fmt.Errorf("%w: the names of the files that differ take more than %d bytes", engine.ErrSnapshotTooLarge, maxNames)
	}
	return nil
}

func (w *walk) entry(f *directory, entry string, from, to []int, depth int) error {
	c := change{name: path.Join(f.name, entry), directory: f}
	var err error
	if c.from, err = f.find(from, entry); err != nil {
		return err
	}
	if c.to, err = f.find(to, entry); err != nil {
		return err
	}
	if c.from == nil && c.to == nil || c.from != nil && c.to != nil && c.from.same(c.to) {
		return nil
	}
	if err := w.visit(w, c); err != nil {
		return err
	}
	if c.to == nil || !c.to.isDirectory() {
		return nil
	}
	var earlier []int
	if c.from != nil && c.from.isDirectory() {
		earlier = c.from.stack
	}
	f.close()
	return w.directory(c.name, earlier, c.to.stack, depth+1)
}

// classify returns what has become of a file; empty for nothing.
func (w *walk) classify(c change) (engine.ChangeKind, error) {
	switch {
	case c.from == nil:
		return engine.ChangeAdded, nil
	case c.to == nil:
		return engine.ChangeRemoved, nil
	}
	equal, err := w.equal(c)
	if err != nil || equal {
		return "", err
	}
	return engine.ChangeModified, nil
}

// readNames calls handle with the names in a directory, some at a time.
func readNames(ctx context.Context, directory *os.File, handle func(names []string) error) error {
	for {
		names, err := directory.Readdirnames(256)
		if len(names) > 0 {
			if err := handle(names); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err = errors.Join(err, ctx.Err()); err != nil {
			return err
		}
	}
}
