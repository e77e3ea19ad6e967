package treecopy

import (
	"bufio"
	"encoding/gob"
	"errors"
	"io"
	"os"
)

// File is a file of a copy, of any kind, with what the source was like.
type File struct {
	Stat
	Path string // in the copy; the first one of several
}

// Index has the files of a copy whose sources can be compared with it, by the inodes of these. The
// one without a path is the root.
type Index map[uint64]File

// WriteIndex writes an index to a new file.
func WriteIndex(path string, index Index) error {
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	buffered := bufio.NewWriterSize(file, 1<<16)
	encoder := gob.NewEncoder(buffered)
	for _, one := range index {
		if err = encoder.Encode(one); err != nil {
			break
		}
	}
	return errors.Join(err, buffered.Flush(), file.Close())
}

// ReadIndex reads what WriteIndex has written.
func ReadIndex(path string) (Index, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	decoder, index := gob.NewDecoder(bufio.NewReaderSize(file, 1<<16)), Index{}
	for {
		var one File
		err := decoder.Decode(&one)
		if errors.Is(err, io.EOF) {
			return index, nil
		}
		if err != nil {
			return nil, err
		}
		index[one.Inode] = one
	}
}
