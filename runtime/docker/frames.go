package docker

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	// fullPiece is the size of the pieces that the engine cuts long lines into.
	fullPiece = 16 << 10
	// maxFrame is more than any engine puts into one frame.
	maxFrame = 1 << 20
	// systemError is the stream on which the engine itself says what went wrong.
	systemError = 3
)

// copyFrames writes what a container printed, from the frames in which the engine sends it: a byte
// for the stream, three of padding, four for the length, and a piece of output.
//
// It is not stdcopy.StdCopy, because engine 20.10 with the log driver local loses the newline
// behind a line of more than 16 KiB. The last piece of such a line is known by being short and
// without a newline; the newline is put back before the stream's next piece. A stream that ended
// without a newline has no next piece.
func copyFrames(w io.Writer, frames io.Reader) error {
	in := bufio.NewReaderSize(frames, 2*fullPiece)
	var header [8]byte
	var piece []byte
	lacksNewline := map[byte]bool{} // by stream
	for {
		if _, err := io.ReadFull(in, header[:]); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		stream, size := header[0], binary.BigEndian.Uint32(header[4:])
		if size > maxFrame || stream > systemError {
			return fmt.Errorf("a frame of %d bytes on stream %d makes no sense", size, stream)
		}
		if lacksNewline[stream] {
			piece = append(piece[:0], '\n')
		} else {
			piece = piece[:0]
		}
		start := len(piece)
		piece = append(piece, make([]byte, size)...)
		if _, err := io.ReadFull(in, piece[start:]); err != nil {
			return io.ErrUnexpectedEOF
		}
		if stream == systemError {
			return fmt.Errorf("the engine says: %s", piece[start:])
		}
		lacksNewline[stream] = size < fullPiece && (size == 0 || piece[len(piece)-1] != '\n')
		if _, err := w.Write(piece); err != nil {
			return err
		}
	}
}
