package kerneltest

import (
	"bytes"
	"compress/zlib"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"hash/crc32"
	"image/png"
	"reflect"
	"slices"
	"testing"

	"sandbox.internal/runtime/kernel"
)

// testCells runs the language's cells one after the other in one kernel: what goes wrong in one
// must not harm the next.
func (s suite) testCells(t *testing.T) {
	k := s.start(t)
	for _, cell := range s.language.Cells {
		t.Run(cell.Name, func(t *testing.T) { cell.check(t, run(t, k, cell.Code)) })
	}
}

func (c Cell) check(t *testing.T, got said) {
	if text := got.text(kernel.OutputStdout); text != c.Stdout {
		t.Errorf("stdout: %q, want %q", text, c.Stdout)
	}
	if text := got.text(kernel.OutputStderr); text != c.Stderr {
		t.Errorf("stderr: %q, want %q", text, c.Stderr)
	}
	checkData(t, got, kernel.OutputResult, c.Result)
	checkData(t, got, kernel.OutputDisplay, c.Display)
	if c.NoResult && slices.ContainsFunc(got.outputs, func(o kernel.Output) bool { return o.Type == kernel.OutputResult }) {
		t.Errorf("a result: %+v", got.outputs)
	}
	c.checkError(t, got)
	if c.PNG != [2]int{} {
		c.checkPNG(t, got)
	}
	if order := got.order(); c.Order != nil && !slices.Equal(order, c.Order) {
		t.Errorf("order: %v, want %v", order, c.Order)
	}
}

func checkData(t *testing.T, got said, of kernel.OutputType, want map[string]string) {
	for mimeType, content := range want {
		if !slices.ContainsFunc(got.outputs, func(o kernel.Output) bool {
			return o.Type == of && sameJSON(o.Data[mimeType], []byte(content))
		}) {
			last, _ := got.data(of, mimeType)
			t.Errorf("%s %s: %s, want %s", of, mimeType, last, content)
		}
	}
}

func (c Cell) checkError(t *testing.T, got said) {
	raised := got.reply.Error
	if c.Error == "" {
		if raised != nil {
			t.Errorf("the cell raised %+v", raised)
		}
		return
	}
	if raised == nil {
		t.Fatalf("the cell did not raise; it said %+v", got.outputs)
	}
	if c.Error != ErrorAny && raised.Name != c.Error {
		t.Errorf("the cell raised %q, want %q", raised.Name, c.Error)
	}
	if c.ErrorValue != "" && raised.Value != c.ErrorValue {
		t.Errorf("the cell raised with %q, want %q", raised.Value, c.ErrorValue)
	}
	if c.Error == ErrorAny {
		return
	}
	at := slices.IndexFunc(got.outputs, func(o kernel.Output) bool { return o.Type == kernel.OutputError })
	if at < 0 {
		t.Fatal("the reply has an error that the output has not")
	}
	if shown := got.outputs[at].Error; shown.Name != raised.Name || shown.Value != raised.Value || len(shown.Traceback) == 0 {
		t.Errorf("the output's error is %+v, the reply's %+v", shown, raised)
	}
}

func (c Cell) checkPNG(t *testing.T, got said) {
	content, found := got.data(kernel.OutputDisplay, "image/png")
	if !found {
		t.Fatalf("no picture: %+v", got.outputs)
	}
	var encoded []byte // encoding/json decodes base64 into bytes
	if err := json.Unmarshal(bytes.ReplaceAll(content, []byte(`\n`), nil), &encoded); err != nil {
		t.Fatalf("the picture %s: %v", content, err)
	}
	picture, err := png.Decode(bytes.NewReader(encoded))
	if err != nil {
		t.Fatalf("the picture %s: %v", base64.StdEncoding.EncodeToString(encoded), err)
	}
	if size := picture.Bounds().Size(); size.X != c.PNG[0] || size.Y != c.PNG[1] {
		t.Errorf("the picture is %v, want %v", size, c.PNG)
	}
}

// order returns the types of the outputs, neighbours of the same type as one: a kernel may cut a
// stream where it likes.
func (s said) order() []kernel.OutputType {
	var order []kernel.OutputType
	for _, o := range s.outputs {
		order = append(order, o.Type)
	}
	return slices.Compact(order)
}

// sameJSON compares without spaces and the order of keys, and with every digit of numbers.
func sameJSON(a, b []byte) bool {
	decode := func(encoded []byte) (value any, ok bool) {
		decoder := json.NewDecoder(bytes.NewReader(encoded))
		decoder.UseNumber()
		return value, decoder.Decode(&value) == nil
	}
	x, xOK := decode(a)
	y, yOK := decode(b)
	return xOK && yOK && reflect.DeepEqual(x, y)
}

// pngOf writes a black picture by hand, so that what decodes it has not made it.
func pngOf(width, height int) []byte {
	out := []byte("\x89PNG\r\n\x1a\n")
	chunk := func(kind string, data []byte) {
		out = binary.BigEndian.AppendUint32(out, uint32(len(data)))
		body := append([]byte(kind), data...)
		out = append(out, body...)
		out = binary.BigEndian.AppendUint32(out, crc32.ChecksumIEEE(body))
	}
	head := binary.BigEndian.AppendUint32(nil, uint32(width))
	head = binary.BigEndian.AppendUint32(head, uint32(height))
	chunk("IHDR", append(head, 8, 0, 0, 0, 0)) // 8 bits of grey
	var pixels bytes.Buffer
	compressor := zlib.NewWriter(&pixels)
	for range height {
		_, _ = compressor.Write(make([]byte, 1+width)) // the row's filter, none, and its pixels
	}
	_ = compressor.Close() // a bytes.Buffer takes everything
	chunk("IDAT", pixels.Bytes())
	chunk("IEND", nil)
	return out
}
