"""PDFs with one text, which no library is needed to write."""


def make_pdf(text: str, pages: int = 1) -> bytes:
    """Return a PDF with its table of byte offsets, whose tree names its one page `pages` times."""
    content = f"BT /F1 12 Tf 72 720 Td ({text}) Tj ET"
    fonts = "/Resources << /Font << /F1 5 0 R >> >>"
    objects = (
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{'3 0 R ' * pages}] /Count {pages} >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 9 9] /Contents 4 0 R {fonts} >>",
        f"<< /Length {len(content)} >>\nstream\n{content}\nendstream",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    )
    body = "%PDF-1.4\n"
    offsets = []
    for number, text_of_object in enumerate(objects, start=1):
        offsets.append(len(body))
        body += f"{number} 0 obj\n{text_of_object}\nendobj\n"
    table = "".join(f"{offset:010} 00000 n \n" for offset in offsets)
    end = f"trailer\n<< /Size 6 /Root 1 0 R >>\nstartxref\n{len(body)}\n%%EOF\n"
    return f"{body}xref\n0 6\n0000000000 65535 f \n{table}{end}".encode()
