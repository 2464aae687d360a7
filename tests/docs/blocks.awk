# Takes a Markdown document apart: block NN of ```sh goes to FOLDER/NN.sh, the ```text block that follows it to
# FOLDER/NN.text and the words behind "text" to FOLDER/NN.how. FOLDER/NN.line holds the line of the document.
# Usage: awk -v folder=FOLDER -f blocks.awk DOCUMENT
/^```/ {
  if (kind) {
    kind = ""
    next
  }
  kind = substr($1, 4)
  if (kind == "sh") {
    block = folder "/" sprintf("%02d", ++blocks)
    print NR > (block ".line")
    printf "" > (block ".sh")
    shown = 0
  } else if (kind == "text" && blocks && !shown++) {
    how = $0
    sub(/^```text */, "", how)
    print how > (block ".how")
    printf "" > (block ".text")
  } else {
    kind = "other"
  }
  next
}
kind == "sh" {print > (block ".sh")}
kind == "text" {print > (block ".text")}
