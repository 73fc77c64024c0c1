"""index.html: one page for every report, as one file that loads nothing from elsewhere.

A page is data (`content.py`): sections with sentences, charts, tables and matrices. Each report has a file that fills
it; one template draws it. Third-party scripts are in `vendor`, each with its licence. Charts and tables themselves are
made by the other reports.
"""
